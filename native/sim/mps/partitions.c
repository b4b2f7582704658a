/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static SM partitions, as of driver 590: the forms are those of NVIDIA's documentation of r615 and of programs that
 * others run on 595 and 610 (docs/adr/087). No control daemon that has them was at hand: what a client with a
 * partition that does not exist is told, and who but root may make partitions, are guesses.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon.h"

bool partitions_known(void)
{
	const char *machine = getenv("HAMI_SIM");
	char path[2048];
	FILE *file;
	int found = 0;

	snprintf(path, sizeof path, "%s/mps-static", machine ? machine : "");
	file = machine ? fopen(path, "re") : NULL;
	if (file) {
		found = fscanf(file, "%u %u %u", &d.chunks, &d.chunk_sms, &d.all_sms);
		fclose(file);
	}
	return found == 3;
}

const struct partition *partition_of(const char *name)
{
	const char *id = strchr(name, '/');

	for (unsigned i = 0; id && i < d.partition_count; i++)
		if (strcmp(d.partitions[i].id, id + 1) == 0)
			return &d.partitions[i];
	return NULL;
}

static unsigned used_chunks(void)
{
	unsigned used = 0;
	for (unsigned i = 0; i < d.partition_count; i++)
		used += d.partitions[i].chunks;
	return used;
}

static bool in_use(const struct partition *one)
{
	for (nfds_t i = LISTENERS; i < d.count; i++)
		if (d.of[i].kind == CLIENT && partition_of(d.of[i].partition) == one)
			return true;
	return false;
}

static void add(nfds_t i, const char *gpu, unsigned chunks)
{
	struct partition *one = &d.partitions[d.partition_count];

	if (mps_refused("sm_partition") || chunks == 0 || chunks > d.chunks - used_chunks() ||
	    d.partition_count == PARTITIONS) {
		answer(i,
		       "Failed to fulfill the requested SM partition of %u chunks, error "
		       "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n",
		       chunks);
		return;
	}
	snprintf(one->id, sizeof one->id, "D/%04x+%02xAAAAAAAAAAAAAAAAAAAAAAAAAAA", ++d.partition_serial,
		 chunks);
	one->chunks = chunks;
	d.partition_count++;
	answer(i, "Partition %s/%s created\n", gpu, one->id);
}

static void rm(nfds_t i, const char *gpu, const char *id)
{
	char name[MPS_LINE];
	const struct partition *one;

	snprintf(name, sizeof name, "%.128s/%.128s", gpu, id);
	one = partition_of(name);
	if (!one) {
		answer(i, "Partition %s not found\n", id);
	} else if (in_use(one)) {
		answer(i, "Partition %s in use. Terminate all clients before removing.\n", id);
	} else {
		d.partitions[one - d.partitions] = d.partitions[--d.partition_count];
		answer(i, "%s", "");
	}
}

void partition_command(nfds_t i, const char *rest)
{
	const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
	char verb[8] = "", given[128] = "", what[128] = "";

	if (sscanf(rest, "%7s %127s %127s", verb, given, what) != 3 || !gpu ||
	    strncmp(given, gpu, strlen(given)) != 0)
		answer(i, "Invalid arguments\n");
	else if (strcmp(verb, "add") == 0)
		add(i, gpu, (unsigned)atoi(what));
	else if (strcmp(verb, "rm") == 0)
		rm(i, given, what);
	else
		answer(i, "Invalid arguments\n");
}

void list_partitions(nfds_t i)
{
	const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
	char text[7 * MPS_LINE];
	unsigned used = used_chunks();
	size_t n = (size_t)snprintf(text, sizeof text,
				    "%-12s %-37s %-5s %-5s %-4s %-4s %s\n%-12s %-37s %-5s %-5s %-4s %-4s\n",
				    "GPU", "Partition", "free", "used", "free", "used", "clients", "", "",
				    "chunk", "chunk", "SM", "SM");

	n += (size_t)snprintf(text + n, sizeof text - n, "%-12.12s %-37s %-5u %-5u %-4u %-4u -\n",
			      gpu ? gpu : "GPU-", "-", d.chunks - used, used, d.all_sms - used * d.chunk_sms,
			      used * d.chunk_sms);
	for (unsigned j = 0; j < d.partition_count && n + 96 < sizeof text; j++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%-12.12s %-37s %-5s %-5u %-4s %-4u %s\n",
				      gpu ? gpu : "GPU-", d.partitions[j].id, "-", d.partitions[j].chunks,
				      "-", d.partitions[j].chunks * d.chunk_sms,
				      in_use(&d.partitions[j]) ? "Yes" : "-");
	answer(i, "%s", text);
}
