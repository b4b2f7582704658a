/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include "machine.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int parse_option(struct fault *f, const char *option)
{
	char *end;
	const char *value = strchr(option, '=');
	if (!value || !value[1])
		return -EINVAL;
	uint64_t n = strtoull(value + 1, &end, 0);
	if (*end)
		return -EINVAL;
	if (strncmp(option, "after=", 6) == 0)
		f->after = n;
	else if (strncmp(option, "times=", 6) == 0)
		f->times = n;
	else if (strncmp(option, "delay_us=", 9) == 0 && n <= UINT_MAX)
		f->delay_us = (unsigned)n;
	else if (strncmp(option, "gpu=", 4) == 0 && n < SIM_MAX_GPUS)
		f->gpu = (int)n;
	else
		return -EINVAL;
	return 0;
}

static int parse_one(struct faults *faults, char *text)
{
	char *rest, *end;
	char *head = strtok_r(text, ":", &rest);
	char *value = head ? strchr(head, '=') : NULL;
	if (!value || value == head || !value[1] || faults->count == FAULTS_MAX)
		return -EINVAL;
	*value++ = '\0';
	struct fault *f = &faults->fault[faults->count];
	*f = (struct fault){.times = UINT64_MAX, .gpu = FAULT_ANY_GPU};
	f->missing = strcmp(head, "missing") == 0;
	const char *name = f->missing ? value : head;
	if (strlen(name) >= sizeof f->name)
		return -EINVAL;
	memcpy(f->name, name, strlen(name) + 1);
	if (!f->missing) {
		f->code = (int)strtol(value, &end, 0);
		if (*end)
			return -EINVAL;
	}
	for (char *option = strtok_r(NULL, ":", &rest); option; option = strtok_r(NULL, ":", &rest))
		if (parse_option(f, option) != 0)
			return -EINVAL;
	faults->count++;
	return 0;
}

static int parse_text(struct faults *faults, const char *text, const char *origin)
{
	char line[256];
	for (const char *p = text; *p;) {
		size_t n = strcspn(p, ";\n");
		snprintf(line, sizeof line, "%.*s", (int)(n < 255 ? n : 255), p);
		p += n + (p[n] != '\0');
		if (!*line || *line == '#')
			continue;
		char shown[256];
		memcpy(shown, line, sizeof shown);
		if (parse_one(faults, line) != 0) {
			fprintf(stderr,
				"hami_hpc: simulation: %s: fault '%s' is not understood; "
				"write for example cuMemAlloc=2:after=5\n",
				origin, shown);
			return -EINVAL;
		}
	}
	return 0;
}

int faults_read(struct faults *out, const char *dir)
{
	char path[PATH_MAX], text[8192];
	out->count = 0;
	snprintf(path, sizeof path, "%.3000s/faults", dir);
	FILE *file = fopen(path, "re");
	if (file) {
		size_t n = fread(text, 1, sizeof text - 1, file);
		text[n] = '\0';
		fclose(file);
		int rc = parse_text(out, text, path);
		if (rc)
			return rc;
	}
	const char *env = getenv("HAMI_SIM_FAULTS");
	return env ? parse_text(out, env, "HAMI_SIM_FAULTS") : 0;
}

static void sleep_us(unsigned us)
{
	struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

static bool hit(struct faults *faults, const char *name, int gpu, int *code)
{
	for (unsigned i = 0; i < faults->count; i++) {
		struct fault *f = &faults->fault[i];
		if (f->missing || f->gpu != gpu || strcmp(f->name, name) != 0)
			continue;
		uint64_t call = atomic_fetch_add(&f->calls, 1);
		if (call < f->after || call - f->after >= f->times)
			continue;
		if (f->delay_us)
			sleep_us(f->delay_us);
		*code = f->code;
		return true;
	}
	return false;
}

bool faults_hit(struct faults *faults, const char *name, int *code)
{
	return hit(faults, name, FAULT_ANY_GPU, code);
}

bool faults_hit_gpu(struct faults *faults, const char *name, uint32_t gpu, int *code)
{
	return hit(faults, name, (int)gpu, code);
}

bool faults_missing(const struct faults *faults, const char *name)
{
	for (unsigned i = 0; i < faults->count; i++)
		if (faults->fault[i].missing && strcmp(faults->fault[i].name, name) == 0)
			return true;
	return false;
}
