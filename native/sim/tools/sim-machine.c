/* SPDX-License-Identifier: Apache-2.0 */
/* sim-machine DIR MODEL...: makes a directory that HAMI_SIM can name, with one GPU for each MODEL. */
#include "machine.h"
#include "state.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *models_dir(char *out, size_t size)
{
	const char *given = getenv("HAMI_SIM_MODELS");
	if (given)
		return given;
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n < 0)
		return "models";
	self[n] = '\0';
	snprintf(out, size, "%s/models", dirname(self));
	return out;
}

/* FNV-1a, 64 bit: the same directory and index give the same UUID. */
static uint64_t hash(const char *text, uint64_t seed)
{
	uint64_t h = 0xcbf29ce484222325ull ^ seed;
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
	return h;
}

/* The next row of mig-placements.tsv: profile, compute, memory, starts, most. */
static int next_placement(FILE *rows, unsigned *id, unsigned *size, char starts[64], unsigned *most)
{
	char line[512];
	while (fgets(line, sizeof line, rows))
		if (*line != '#')
			return sscanf(line, "%u %*u %u %63s %u", id, size, starts, most) == 4 ? 0 : -EINVAL;
	return -EINVAL;
}

/* A model's profiles, each with its row of mig-placements.tsv. */
static int append_mig(FILE *out, const char *models, char *value)
{
	char path[PATH_MAX + 32], starts[64], *rest;
	unsigned id, size, most;
	const char *separator = "mig=";
	int rc = 0;
	snprintf(path, sizeof path, "%s/mig-placements.tsv", models);
	FILE *rows = fopen(path, "re");
	if (!rows)
		return -errno;
	for (char *one = strtok_r(value, ",\n", &rest); one && !rc; one = strtok_r(NULL, ",\n", &rest)) {
		rc = next_placement(rows, &id, &size, starts, &most);
		for (char *p = starts; !rc && (p = strchr(p, ',')); p++)
			*p = '/';
		if (!rc)
			fprintf(out, "%s%s:%u:%u:%u:%s", separator, one, id, size, most, starts);
		separator = ",";
	}
	fputc('\n', out);
	fclose(rows);
	return rc;
}

static int append_model(FILE *out, const char *dir, const char *model, unsigned index)
{
	char models[PATH_MAX], path[2 * PATH_MAX], line[512];
	struct sim_model checked = {0};
	if (strchr(model, '/'))
		return -EINVAL;
	snprintf(path, sizeof path, "%s/%s.conf", models_dir(models, sizeof models), model);
	int rc = sim_model_read(path, &checked);
	if (rc) {
		fprintf(stderr, "sim-machine: no model '%s' (%s: %s); models are the *.conf files there\n",
			model, path, strerror(-rc));
		return rc;
	}
	FILE *in = fopen(path, "re");
	if (!in)
		return -errno;
	uint64_t a = hash(dir, index + 1), b = hash(model, a);
	fprintf(out, "\n[gpu]\nmodel=%s\nminor=%u\nuuid=GPU-%08x-%04x-%04x-%04x-%012llx\n", model, index,
		(unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xffff),
		(unsigned)(b >> 48), (unsigned long long)(b & 0xffffffffffff));
	while (!rc && fgets(line, sizeof line, in))
		if (strncmp(line, "mig=", 4) == 0)
			rc = append_mig(out, models_dir(models, sizeof models), line + 4);
		else if (*line != '#' && *line != '\n')
			fputs(line, out);
	fclose(in);
	return rc;
}

static int write_machine(const char *dir, int count, char **models)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%.3000s/machine.conf", dir);
	FILE *out = fopen(path, "we");
	if (!out)
		return -errno;
	fprintf(out, "# A simulated machine; written by sim-machine.\n"
		     "driver_version=580.159.04\n"
		     "cuda_version=13000\n");
	int rc = 0;
	for (int i = 0; !rc && i < count; i++)
		rc = append_model(out, dir, models[i], (unsigned)i);
	if (fclose(out) != 0 && !rc)
		rc = -errno;
	return rc;
}

/* Everybody may use the simulated GPUs, so everybody may write here: it is a simulation. */
static int make_open_dir(const char *path, mode_t mode)
{
	if (mkdir(path, mode) != 0 && errno != EEXIST)
		return -errno;
	return chmod(path, mode) == 0 ? 0 : -errno;
}

/* Stands for a device file of /dev, which everybody may open. */
static int make_device_file(const char *dir, const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%.3000s/%s", dir, name);
	FILE *file = fopen(path, "we");
	return !file || fclose(file) != 0 || chmod(path, 0666) != 0 ? -errno : 0;
}

static int make_machine(const char *name, int count, char **models)
{
	char dir[PATH_MAX], path[PATH_MAX];
	int rc = make_open_dir(name, 0755);
	if (rc)
		return rc;
	if (!realpath(name, dir) || strlen(dir) > 2000)
		return -ENAMETOOLONG;
	rc = write_machine(dir, count, models);
	if (rc)
		return rc;
	snprintf(path, sizeof path, "%.3000s/shared", dir);
	rc = make_open_dir(path, 01777);
	if (rc)
		return rc;
	snprintf(path, sizeof path, "%.3000s/state", dir);
	unlink(path);
	rc = sim_state_create(dir, (uint32_t)count);
	if (rc)
		return rc;
	rc = make_device_file(dir, "nvidiactl");
	return rc ? rc : make_device_file(dir, "nvidia-uvm");
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc - 2 > SIM_MAX_GPUS) {
		fprintf(stderr,
			"usage: sim-machine DIR MODEL...   "
			"(1 to %d GPUs, for example: sim-machine /tmp/m h200 h200)\n",
			SIM_MAX_GPUS);
		return 2;
	}
	int rc = make_machine(argv[1], argc - 2, argv + 2);
	if (rc) {
		fprintf(stderr, "sim-machine: %s: %s\n", argv[1], strerror(-rc));
		return 1;
	}
	return 0;
}
