/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { NUMBER, TEXT };

static const struct field {
	const char *key;
	enum kind kind;
	size_t offset, size;
} fields[] = {
#define NUMBER_KEY(k)                                                                                        \
	{                                                                                                    \
#k, NUMBER, offsetof(struct sim_model, k), sizeof(uint32_t)                                  \
	}
#define TEXT_KEY(k)                                                                                          \
	{                                                                                                    \
#k, TEXT, offsetof(struct sim_model, k), sizeof(((struct sim_model *)0)->k)                  \
	}
	TEXT_KEY(model),
	TEXT_KEY(name),
	TEXT_KEY(uuid),
	NUMBER_KEY(minor),
	NUMBER_KEY(total_mib),
	NUMBER_KEY(reserved_mib),
	NUMBER_KEY(context_mib),
	NUMBER_KEY(sm_count),
	NUMBER_KEY(cc_major),
	NUMBER_KEY(cc_minor),
	NUMBER_KEY(clock_mhz),
	NUMBER_KEY(memory_clock_mhz),
	NUMBER_KEY(memory_bus_bits),
	NUMBER_KEY(l2_mib),
	NUMBER_KEY(power_limit_w),
	NUMBER_KEY(channel_class),
	NUMBER_KEY(timeslice_us),
	NUMBER_KEY(switch_us),
	NUMBER_KEY(off_engine_us),
	NUMBER_KEY(pause_us),
	NUMBER_KEY(resume_us),
	NUMBER_KEY(kernel_ns),
	NUMBER_KEY(copy_gb_per_s),
	NUMBER_KEY(fill_gb_per_s),
	NUMBER_KEY(addressing),
	NUMBER_KEY(gpm),
};

static int copy_text(char *out, size_t size, const char *value)
{
	size_t length = strlen(value);
	if (length >= size)
		return -EINVAL;
	memcpy(out, value, length + 1);
	return 0;
}

static int parse_u32(const char *value, uint32_t *out)
{
	char *end;
	errno = 0;
	unsigned long n = strtoul(value, &end, 0);
	if (errno || end == value || *end || n > UINT32_MAX || *value == '-')
		return -EINVAL;
	*out = (uint32_t)n;
	return 0;
}

/* The starts of placements: 0/2/4. Returns what follows, or NULL. */
static const char *parse_starts(const char *p, uint32_t *out)
{
	for (;; p++) {
		if (!isdigit((unsigned char)*p))
			return NULL;
		*out |= 1u << (*p++ - '0');
		if (*p != '/')
			return p;
	}
}

/* name:memory_mib:sm_count,... of a model; of a machine each goes on with :id:size:most:starts. */
static int parse_mig(const char *value, struct sim_model *m)
{
	m->mig_count = 0;
	for (const char *p = value; *p;) {
		struct sim_mig_profile *profile = &m->mig[m->mig_count];
		int used = 0, more = 0;
		if (m->mig_count == SIM_MAX_MIG_PROFILES ||
		    sscanf(p, "%15[^:,]:%u:%u%n", profile->name, &profile->memory_mib, &profile->sm_count,
			   &used) != 3)
			return -EINVAL;
		m->mig_count++;
		p += used;
		if (sscanf(p, ":%u:%u:%u:%n", &profile->id, &profile->size, &profile->most, &more) == 3 &&
		    more)
			p = parse_starts(p + more, &profile->start_set);
		if (!p || (*p && *p != ','))
			return -EINVAL;
		p += *p == ',';
	}
	return 0;
}

static int set_model_key(struct sim_model *m, const char *key, const char *value)
{
	if (strcmp(key, "mig") == 0)
		return parse_mig(value, m);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		if (strcmp(key, fields[i].key) != 0)
			continue;
		char *at = (char *)m + fields[i].offset;
		return fields[i].kind == TEXT ? copy_text(at, fields[i].size, value)
					      : parse_u32(value, (uint32_t *)(void *)at);
	}
	return -EINVAL;
}

static int set_machine_key(struct sim_machine *machine, const char *key, const char *value)
{
	if (strcmp(key, "driver_version") == 0)
		return copy_text(machine->driver_version, sizeof machine->driver_version, value);
	if (strcmp(key, "cuda_version") == 0)
		return parse_u32(value, &machine->cuda_version);
	return -EINVAL;
}

static void trim(char *line)
{
	size_t n = strlen(line);
	while (n && isspace((unsigned char)line[n - 1]))
		line[--n] = '\0';
}

static int complain(const char *path, unsigned number, const char *line)
{
	fprintf(stderr,
		"hami_hpc: simulation: %s:%u: '%.60s' is not understood; write the file with sim-machine\n",
		path, number, line);
	return -EINVAL;
}

/* With a machine, keys before the first [gpu] are the machine's; without, every key is the model's. */
static int read_keys(const char *path, struct sim_machine *machine, struct sim_model *model)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return -errno;
	char line[512];
	int rc = 0;
	for (unsigned number = 1; !rc && fgets(line, sizeof line, file); number++) {
		trim(line);
		if (!*line || *line == '#')
			continue;
		if (machine && strcmp(line, "[gpu]") == 0 && machine->gpu_count < SIM_MAX_GPUS) {
			model = &machine->gpu[machine->gpu_count++];
			continue;
		}
		char *value = strchr(line, '=');
		if (!value) {
			rc = complain(path, number, line);
			break;
		}
		*value++ = '\0';
		rc = model ? set_model_key(model, line, value) : set_machine_key(machine, line, value);
		if (rc)
			complain(path, number, line);
	}
	fclose(file);
	return rc;
}

/* 0 when uuid is "GPU-" and 32 hexadecimal digits between dashes. */
static int strip_uuid(struct sim_model *m)
{
	size_t n = 0;
	if (strncmp(m->uuid, "GPU-", 4) != 0)
		return -EINVAL;
	for (const char *p = m->uuid + 4; *p; p++) {
		if (*p == '-')
			continue;
		if (!isxdigit((unsigned char)*p) || n == 32)
			return -EINVAL;
		m->uuid_hex[n++] = *p;
	}
	m->uuid_hex[n] = '\0';
	return n == 32 ? 0 : -EINVAL;
}

int sim_model_read(const char *path, struct sim_model *out)
{
	int rc = read_keys(path, NULL, out);
	if (rc)
		return rc;
	if (!out->name[0] || !out->sm_count || !out->timeslice_us || out->total_mib <= out->reserved_mib) {
		fprintf(stderr,
			"hami_hpc: simulation: %s lacks one of "
			"name, total_mib, reserved_mib, sm_count, timeslice_us\n",
			path);
		return -EINVAL;
	}
	return 0;
}

int sim_machine_read(const char *dir, struct sim_machine *out)
{
	char path[PATH_MAX];
	memset(out, 0, sizeof *out);
	int n = snprintf(path, sizeof path, "%s/machine.conf", dir);
	if (n < 0 || (size_t)n >= sizeof path)
		return -ENAMETOOLONG;
	int rc = read_keys(path, out, NULL);
	for (uint32_t i = 0; !rc && i < out->gpu_count; i++) {
		struct sim_model *m = &out->gpu[i];
		rc = strip_uuid(m);
		if (rc || !m->timeslice_us || m->total_mib <= m->reserved_mib) {
			fprintf(stderr,
				"hami_hpc: simulation: %s: GPU %u is incomplete; "
				"write the file with sim-machine\n",
				path, i);
			rc = -EINVAL;
		}
	}
	return rc;
}
