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

uint32_t cgroup_job_of_line(char *line)
{
	bool is_v2 = strncmp(line, "0:", 2) == 0;
	char *path = strchr(line, ':'), *name, *after;
	uint32_t job;

	path = path ? strchr(path + 1, ':') : NULL;
	if (!path)
		return 0;
	path++;
	path[strcspn(path, "\n")] = '\0';
	name = next(&path);
	while (name && strcmp(name, "user.slice") != 0) {
		bool is_top = is_v2 ? is_top_v2(name) : is_top_v1(name);

		name = next(&path);
		if (!is_top || (!is_v2 && !is_uid(name)))
			continue;
		after = is_v2 ? name : next(&path);
		job = number_in(after, "job_");
		if (!job)
			return 0;
		name = next(&path);
		return name && strcmp(name, "step_extern") == 0 ? job : 0;
	}
	return 0;
}

int cgroup_read_job(const char *path, uint32_t *job)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;
	uint32_t found;
	int rc = 0;

	*job = 0;
	if (!file)
		return -errno;
	while (rc == 0 && getline(&line, &size, file) >= 0) {
		found = cgroup_job_of_line(line);
		if (found && *job && found != *job)
			rc = -EXDEV;
		else if (found)
			*job = found;
	}
	if (rc == 0 && ferror(file))
		rc = -EIO;
	free(line);
	fclose(file);
	return rc;
}
