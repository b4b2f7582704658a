// SPDX-License-Identifier: GPL-2.0-or-later
#include "cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SCOPE[] = "slurmstepd.scope";

/* Returns the number in PREFIXnumber, 1 to UINT32_MAX - 1; 0 for another text. */
static uint32_t number_in(const char *text, const char *prefix)
{
	size_t length = strlen(prefix);
	uint64_t value = 0;

	if (!text || strncmp(text, prefix, length) != 0)
		return 0;
	for (text += length; *text; text++) {
		if (*text < '0' || *text > '9' || value > UINT32_MAX / 10)
			return 0;
		value = value * 10 + (uint64_t)(*text - '0');
	}
	return value < UINT32_MAX ? (uint32_t)value : 0;
}

static bool is_uid(const char *text)
{
	return text && strncmp(text, "uid_", 4) == 0 && text[4] &&
	       text[4 + strspn(text + 4, "0123456789")] == '\0';
}

static bool is_top_v1(const char *name)
{
	return strcmp(name, "slurm") == 0 || (strncmp(name, "slurm_", 6) == 0 && name[6]);
}

static bool is_top_v2(const char *name)
{
	size_t length = strlen(name), own = sizeof(SCOPE) - 1;

	return strcmp(name, SCOPE) == 0 ||
	       (length > own + 1 && strcmp(name + length - own, SCOPE) == 0 && name[length - own - 1] == '_');
}

/* Returns the next folder of a path, which it ends with a NUL, or NULL. */
static char *next(char **path)
{
	char *name;

	do
		name = strsep(path, "/");
	while (name && !*name);
	return name;
}

bool cgroup_is_job(const struct cgroup_job *job)
{
	return job->id || *job->sluid;
}

/* Reads the name of a job's folder. */
static bool read_name(const char *name, bool is_v2, struct cgroup_job *job)
{
	*job = (struct cgroup_job){.id = number_in(name, "job_")};
	if (!job->id && is_v2 && name && name[0] == 's' && strlen(name) == CGROUP_SLUID_SIZE - 1 &&
	    strspn(name + 1, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == CGROUP_SLUID_SIZE - 2)
		memcpy(job->sluid, name, CGROUP_SLUID_SIZE);
	return cgroup_is_job(job);
}

bool cgroup_job_of_line(char *line, struct cgroup_job *job)
{
	bool is_v2 = strncmp(line, "0:", 2) == 0;
	char *path = strchr(line, ':'), *name, *after;

	path = path ? strchr(path + 1, ':') : NULL;
	if (!path)
		return false;
	path++;
	path[strcspn(path, "\n")] = '\0';
	name = next(&path);
	while (name && strcmp(name, "user.slice") != 0) {
		bool is_top = is_v2 ? is_top_v2(name) : is_top_v1(name);

		name = next(&path);
		if (!is_top || (!is_v2 && !is_uid(name)))
			continue;
		after = is_v2 ? name : next(&path);
		if (!read_name(after, is_v2, job))
			return false;
		name = next(&path);
		return name && strcmp(name, "step_extern") == 0;
	}
	return false;
}

int cgroup_read_job(const char *path, struct cgroup_job *job)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;
	struct cgroup_job found;
	int rc = 0;

	*job = (struct cgroup_job){.id = 0};
	if (!file)
		return -errno;
	while (rc == 0 && getline(&line, &size, file) >= 0) {
		if (!cgroup_job_of_line(line, &found))
			continue;
		if (cgroup_is_job(job) && (found.id != job->id || strcmp(found.sluid, job->sluid) != 0))
			rc = -EXDEV;
		*job = found;
	}
	if (rc == 0 && ferror(file))
		rc = -EIO;
	free(line);
	fclose(file);
	return rc;
}
