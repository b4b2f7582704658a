/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 1024 };

static bool path_of(const struct sim_view *v, char *out, uint32_t g, ino_t inode)
{
	int n = snprintf(out, PATH_MAX, "%s/memory-limits/%u-%ju", v->dir, g, (uintmax_t)inode);
	return n > 0 && n < PATH_MAX;
}

bool sim_limits_exist(const struct sim_view *v)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/memory-limits", v->dir);
	return access(path, F_OK) == 0;
}

int sim_limit_set(const struct sim_view *v, uint32_t g, const char *cgroup, uint64_t soft, uint64_t hard)
{
	struct stat st;
	char path[PATH_MAX];
	if (stat(cgroup, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || soft > hard || !path_of(v, path, g, st.st_ino))
		return -EINVAL;
	if (!soft && hard == SIM_LIMIT_MAX)
		return unlink(path) == 0 || errno == ENOENT ? 0 : -errno;
	FILE *file = fopen(path, "we");
	if (!file)
		return -errno;
	fprintf(file, "%" PRIu64 " %" PRIu64 "\n", soft, hard);
	return fclose(file) == 0 ? 0 : -errno;
}

/* The inode of the nearest cgroup at or above this one that has a limit, which is read into out; 0: none. */
static ino_t nearest(const struct sim_view *v, uint32_t g, const char *cgroup, struct sim_limit *out)
{
	char at[PATH_SIZE], path[PATH_MAX];
	struct stat st;
	if (snprintf(at, sizeof at, "%s", cgroup) >= (int)sizeof at)
		return 0;
	for (char *slash = at; *at; *slash = '\0') {
		if (stat(at, &st) == 0 && path_of(v, path, g, st.st_ino)) {
			FILE *file = fopen(path, "re");
			int n = file ? fscanf(file, "%" SCNu64 " %" SCNu64, &out->soft, &out->hard) : 0;
			if (file)
				fclose(file);
			if (n == 2)
				return st.st_ino;
		}
		slash = strrchr(at, '/');
		if (!slash)
			break;
	}
	return 0;
}

/* The directory of a process's cgroup; "" where it has ended or is in none of version 2. */
static void cgroup_of(const struct sim_view *v, int32_t pid, char *out)
{
	char path[PATH_MAX], line[PATH_SIZE];
	snprintf(path, sizeof path, "%s/cgroups/%d", v->dir, pid);
	out[0] = '\0';
	FILE *file = fopen(path, "re");
	bool is_own = file != NULL;
	if (!file) {
		snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
		file = fopen(path, "re");
	}
	while (file && fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = '\0';
		if (is_own)
			snprintf(out, PATH_SIZE, "%s", line);
		else if (!strncmp(line, "0::", 3))
			snprintf(out, PATH_SIZE, "/sys/fs/cgroup%.900s", line + 3);
	}
	if (file)
		fclose(file);
}

static uint64_t used_below(const struct sim_view *v, uint32_t g, ino_t limited)
{
	const struct sim_state *s = v->state;
	struct sim_limit unused;
	char cgroup[PATH_SIZE];
	uint64_t used = 0;
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1)) {
		if (!s->slot[i].gpu[g].used_bytes)
			continue;
		cgroup_of(v, s->slot[i].pid, cgroup);
		if (nearest(v, g, cgroup, &unused) == limited)
			used += s->slot[i].gpu[g].used_bytes;
	}
	return used;
}

int sim_limit_get(const struct sim_view *v, uint32_t g, const char *cgroup, struct sim_limit *out)
{
	struct stat st;
	if (stat(cgroup, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -EINVAL;
	*out = (struct sim_limit){.hard = SIM_LIMIT_MAX};
	ino_t limited = nearest(v, g, cgroup, out);
	out->used = limited ? used_below(v, g, limited) : 0;
	return 0;
}

int sim_limit_room(struct sim_view *v, uint32_t g, uint64_t bytes)
{
	char cgroup[PATH_SIZE];
	struct sim_limit limit;
	if (v->slot == SIM_NO_SLOT || !sim_limits_exist(v))
		return 0;
	cgroup_of(v, v->state->slot[v->slot].pid, cgroup);
	ino_t limited = nearest(v, g, cgroup, &limit);
	if (!limited || limit.hard == SIM_LIMIT_MAX)
		return 0;
	uint64_t used = used_below(v, g, limited);
	if (used > limit.hard || bytes > limit.hard - used) {
		sim_sweep(v); /* what the dead hold */
		used = used_below(v, g, limited);
	}
	return used > limit.hard || bytes > limit.hard - used ? -ENOMEM : 0;
}
