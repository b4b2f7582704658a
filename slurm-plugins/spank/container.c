// SPDX-License-Identifier: GPL-2.0-or-later
#include "container.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hami_contract.h"
#include "record.h"

const char *const container_variables[2] = {"APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"};

#define PRELOAD HAMI_FILE_SELF "/" HAMI_FILE_CONTAINER_PRELOAD

enum {
	TEXT_MAX = 2 * PATH_MAX + 1024,
	VARIABLE_MAX = 128 * 1024 - 64 /* MAX_ARG_STRLEN of Linux: execve fails with a longer one */
};

/* As fstab(5). enroot makes the mount points by x-create; `hami-hpc oci-mounts` leaves that to the OCI runtime. */
static int write_mounts(int dir, const char *library)
{
	char text[TEXT_MAX];
	int n = snprintf(text, sizeof(text),
			 "%s %s none x-create=dir,rbind,rw,nosuid,nodev,noexec,rprivate 0 0\n"
			 "%s /etc/ld.so.preload none x-create=file,bind,ro,nosuid,nodev,noexec,private 0 0\n"
			 "%s %s none x-create=file,bind,ro,nosuid,nodev,private 0 0\n",
			 HAMI_FILE_SELF, HAMI_FILE_SELF, PRELOAD, library, library);

	if (n < 0 || (size_t)n >= sizeof(text))
		return -ENAMETOOLONG;
	return record_write_file(dir, HAMI_FILE_CONTAINER_MOUNTS, text, (size_t)n);
}

int container_write(int dir, const struct options *opt)
{
	char list[PATH_MAX + 2];
	int n = snprintf(list, sizeof(list), "%s\n", opt->interposer), rc;

	if (n < 0 || (size_t)n >= sizeof(list))
		return -ENAMETOOLONG;
	rc = record_write_file(dir, HAMI_FILE_CONTAINER_PRELOAD, list, (size_t)n);
	return rc < 0 ? rc : write_mounts(dir, opt->interposer);
}

/* Writes the list as SOURCE:TARGET[:ro],... to text. Returns its length, or 0 if it does not fit. */
static size_t write_binds(char *text, size_t size, const struct options *opt)
{
	int n = snprintf(text, size, "%s:%s,%s:/etc/ld.so.preload:ro,%s:%s:ro", HAMI_FILE_SELF,
			 HAMI_FILE_SELF, PRELOAD, opt->interposer, opt->interposer);

	return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

/* Returns where ours is in old, as whole entries between commas; NULL if it is not. */
static char *find(char *old, const char *ours, size_t length)
{
	for (char *at = old; (at = strstr(at, ours)); at++) {
		if ((at == old || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
			return at;
	}
	return NULL;
}

char *container_binds_without(const char *old, const struct options *opt)
{
	char ours[TEXT_MAX], *rest = strdup(old ? old : ""), *at;
	size_t length = write_binds(ours, sizeof(ours), opt);

	while (rest && length && (at = find(rest, ours, length))) {
		char *end = at + length;

		if (*end == ',')
			end++;
		else if (at > rest)
			at--; /* the comma in front of the last entry */
		memmove(at, end, strlen(end) + 1);
	}
	return rest;
}

char *container_binds_with(const char *old, const struct options *opt)
{
	char ours[TEXT_MAX], *rest = container_binds_without(old, opt), *value = NULL;
	size_t length = write_binds(ours, sizeof(ours), opt), used = rest ? strlen(rest) : 0;

	if (rest && length && used + 1 + length < VARIABLE_MAX && (value = malloc(length + 1 + used + 1))) {
		memcpy(value, ours, length);
		if (used)
			value[length++] = ',';
		memcpy(value + length, rest, used + 1);
	}
	free(rest);
	return value;
}

bool container_binds_has(const char *old, const struct options *opt)
{
	char ours[TEXT_MAX], *copy = old ? strdup(old) : NULL;
	size_t length = write_binds(ours, sizeof(ours), opt);
	bool has = copy && length && find(copy, ours, length);

	free(copy);
	return has;
}
