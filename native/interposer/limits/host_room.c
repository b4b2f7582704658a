/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/host_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool cannot_open; /* for want of a descriptor, or of memory */

/* Reads the beginning of a file as text; "" when it cannot be read. */
static void read_text(const char *path, char *text, size_t size)
{
	ssize_t length = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		length = read(fd, text, size - 1);
		close(fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
		cannot_open = true;
	}
	text[length > 0 ? length : 0] = '\0';
}

/* Returns the number in a file; UINT64_MAX when there is none ("max", or no such file). */
static uint64_t read_number(const char *path)
{
	char text[32];
	read_text(path, text, sizeof text);
	return *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

static uint64_t machine_room(void)
{
	static const char name[] = "MemAvailable:";
	char text[4096];
	read_text("/proc/meminfo", text, sizeof text);
	const char *line = strstr(text, name);
	return line ? strtoull(line + sizeof name - 1, NULL, 10) << 10 : UINT64_MAX;
}

/* Returns a number of a memory.stat in `text`; 0 when it is not there. */
static uint64_t stat_of(const char *text, const char *name)
{
	const size_t length = strlen(name);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) == 0)
			return strtoull(line + length, NULL, 10);
	}
	return 0;
}

/* Returns what the kernel would take back first: pages of files, and an arena that is kept (limits/swap.c). */
static uint64_t reclaimable(const char *directory, bool is_v2)
{
	char file[4200], text[8192];
	snprintf(file, sizeof file, "%.4000s/memory.stat", directory);
	read_text(file, text, sizeof text);
	return stat_of(text, is_v2 ? "inactive_file " : "total_inactive_file ") +
	       stat_of(text, is_v2 ? "active_file " : "total_active_file ");
}

/*
 * Returns the room below a directory of cgroups and all above it, up to the mount, whose path has `least` characters: in a
 * container with a cgroup namespace of its own that is its cgroup, which has a limit; else the machine's, without one.
 */
static uint64_t cgroup_room(char *path, size_t least, bool is_v2)
{
	const char *limit_name = is_v2 ? "memory.max" : "memory.limit_in_bytes";
	const char *used_name = is_v2 ? "memory.current" : "memory.usage_in_bytes";
	uint64_t room = UINT64_MAX;
	for (size_t length = strlen(path); length >= least; length = (size_t)(strrchr(path, '/') - path)) {
		char file[4200];
		path[length] = '\0';
		snprintf(file, sizeof file, "%.4000s/%s", path, limit_name);
		uint64_t limit = read_number(file);
		snprintf(file, sizeof file, "%.4000s/%s", path, used_name);
		uint64_t used = read_number(file);
		if (limit != UINT64_MAX && used != UINT64_MAX) {
			const uint64_t again = reclaimable(path, is_v2);
			used -= again < used ? again : used;
			uint64_t left = limit > used ? limit - used : 0;
			room = left < room ? left : room;
		}
	}
	return room;
}

static uint64_t cgroups_room(void)
{
	static const char v1[] = "/sys/fs/cgroup/memory", v2[] = "/sys/fs/cgroup";
	char text[8192], path[4100], *rest = text;
	uint64_t room = UINT64_MAX;
	read_text("/proc/self/cgroup", text, sizeof text);
	for (char *line; (line = strsep(&rest, "\n"));) {
		const char *name = strchr(line, ':'), *own = name ? strchr(name + 1, ':') : NULL;
		if (!own || own[1] != '/')
			continue;
		const bool is_v2 = own == name + 1, is_v1 = strncmp(name, ":memory:", 8) == 0;
		if (!is_v1 && !is_v2)
			continue;
		snprintf(path, sizeof path, "%s%.4000s", is_v2 ? v2 : v1, own[2] ? own + 1 : "");
		uint64_t left = cgroup_room(path, is_v2 ? sizeof v2 - 1 : sizeof v1 - 1, is_v2);
		room = left < room ? left : room;
	}
	return room;
}

uint64_t hami_host_room(void)
{
	cannot_open = false;
	uint64_t machine = machine_room(), cgroups = cgroups_room();
	if (cannot_open)
		return 0;
	return machine < cgroups ? machine : cgroups;
}
