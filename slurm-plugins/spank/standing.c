// SPDX-License-Identifier: GPL-2.0-or-later
#include "standing.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hami_contract.h"

enum { UUID_SIZE = 96 };

/* Finds a number's line. The UUID may have letters, digits and '-' alone. */
static bool find_uuid(const char *map, unsigned long number, char uuid[UUID_SIZE])
{
	static const char characters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-";

	for (const char *line = map; line && *line;
	     line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		char *rest;
		size_t length;

		if (strtoul(line, &rest, 10) != number || rest == line || strncmp(rest, " MIG-", 5) != 0)
			continue;
		length = strspn(rest + 1, characters);
		if (length >= UUID_SIZE || rest[1 + length] != '\n')
			return false;
		memcpy(uuid, rest + 1, length);
		uuid[length] = '\0';
		return true;
	}
	return false;
}

bool standing_uuids(const char *map, const char *gpus, char *uuids, size_t size)
{
	size_t used = 0;

	if (!*gpus)
		return false;
	for (const char *at = gpus;;) {
		char uuid[UUID_SIZE], *rest;
		unsigned long number;
		int n;

		if (*at < '0' || *at > '9')
			return false;
		number = strtoul(at, &rest, 10);
		if ((*rest != ',' && *rest != '\0') || !find_uuid(map, number, uuid))
			return false;
		n = snprintf(uuids + used, size - used, "%s%s", used ? "," : "", uuid);
		if (n < 0 || (size_t)n >= size - used)
			return false;
		used += (size_t)n;
		if (*rest == '\0')
			return true;
		at = rest + 1;
	}
}

bool standing_read(const char *run_dir, uid_t owner, char map[STANDING_MAP_SIZE])
{
	char path[PATH_MAX];
	struct stat st;
	ssize_t length = -1;
	int fd;

	snprintf(path, sizeof(path), "%s/" HAMI_FILE_MIG_STATIC, run_dir);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == owner &&
	    !(st.st_mode & (S_IWGRP | S_IWOTH)))
		length = read(fd, map, STANDING_MAP_SIZE - 1);
	close(fd);
	if (length <= 0)
		return false;
	map[length] = '\0';
	return true;
}
