/* SPDX-License-Identifier: Apache-2.0 */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One hierarchy, as it is named in /proc/PID/cgroup: its controllers are "" for version 2. */
static const char *const hierarchies[] = {"", "freezer"};

/* Returns whether `word` is one of those in list, which `separators` part. */
static bool has_word(const char *list, const char *word, const char *separators)
{
	const size_t length = strlen(word);

	for (const char *at = list; *at;) {
		size_t span = strcspn(at, separators);
		if (span == length && !strncmp(at, word, length))
			return true;
		at += span;
		at += strspn(at, separators);
	}
	return false;
}

/* Writes the process's path in the hierarchy to path[PATH_MAX]. Returns whether it has one. */
static bool read_path(pid_t pid, const char *controller, char *path)
{
	char name[64], *line = NULL;
	size_t room = 0;
	bool found = false;
	FILE *file;

	snprintf(name, sizeof name, "/proc/%d/cgroup", (int)pid);
	if (!(file = fopen(name, "re")))
		return false;
	while (!found && getline(&line, &room, file) > 0) { /* ID:CONTROLLERS:PATH */
		char *controllers = strchr(line, ':'),
		     *at = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!at)
			continue;
		*at++ = '\0';
		at[strcspn(at, "\n")] = '\0';
		controllers++;
		found = *controller ? has_word(controllers, controller, ",") : !*controllers;
		if (found && snprintf(path, PATH_MAX, "%s", at) >= PATH_MAX)
			found = false;
	}
	free(line);
	fclose(file);
	return found;
}

/* Returns whether a cgroup is that one or below it. */
static bool is_below(const char *path, const char *root)
{
	const size_t length = strcmp(root, "/") ? strlen(root) : 0;

	return !strncmp(path, root, length) && (!path[length] || path[length] == '/');
}

/* Finds a mount of the hierarchy that shows the cgroup: writes where it is to mount[PATH_MAX], its own root to root. */
static bool read_mount(const char *controller, const char *path, char *mount, char *root)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t room = 0;
	bool found = false;

	while (file && !found &&
	       getline(&line, &room, file) > 0) { /* ID PARENT DEV ROOT MOUNT ... - TYPE SOURCE OPTIONS */
		char *end = strstr(line, " - "), type[32], options[256];
		if (!end || sscanf(end + 3, "%31s %*s %255s", type, options) != 2 ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) != 2)
			continue;
		found = is_below(path, root) &&
			(*controller ? !strcmp(type, "cgroup") && has_word(options, controller, ",")
				     : !strcmp(type, "cgroup2"));
	}
	free(line);
	if (file)
		fclose(file);
	return found;
}

/* Writes this process's id to the cgroup. */
static int enter(const char *mount, const char *root, const char *path)
{
	char file[2 * PATH_MAX + 16];
	size_t above = strcmp(root, "/") ? strlen(root) : 0;
	int fd, saved;
	bool done;

	snprintf(file, sizeof file, "%s%s/cgroup.procs", mount, path + above);
	if ((fd = open(file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW)) < 0)
		return -1;
	done = write(fd, "0", 1) == 1; /* 0 is the process that writes */
	saved = errno;
	close(fd);
	errno = saved;
	return done ? 0 : -1;
}

/*
 * With version 2 a step's processes that belong to no task are in task_special, beside those of the tasks: srun
 * --wait-for-children takes a task for ended when nobody is left in its own.
 */
static int enter_beside(const char *mount, const char *root, char *path)
{
	char beside[PATH_MAX];
	const char *leaf = strrchr(path, '/');

	if (leaf && !strncmp(leaf, "/task_", 6) &&
	    snprintf(beside, sizeof beside, "%.*s/task_special", (int)(leaf - path), path) < PATH_MAX &&
	    enter(mount, root, beside) == 0)
		return 0;
	return enter(mount, root, path);
}

/* Makes of a path in a job's cgroup that of one which Slurm keeps. Returns whether it was in a job's. */
static bool outside_of_job(char *path, size_t size, bool version2)
{
	static const char kept[] = "/system"; /* of slurmstepd.scope */
	char *end;

	if (!version2) { /* /slurm_NODE/uid_N/job_N/... */
		if (!(end = strstr(path, "/uid_")) || !strstr(end, "/job_"))
			return false;
		*end = '\0';
		return true;
	}
	if (!(end = strstr(path, "/step_"))) /* SCOPE/JOB/step_N/slurm; since 26.05 JOB need not be job_N */
		return false;
	*end = '\0';
	if (!(end = strrchr(path, '/')) || (size_t)(end - path) + sizeof kept > size)
		return false;
	memcpy(end, kept, sizeof kept);
	return true;
}

void cgroup_leave_job(void)
{
	static char mount[PATH_MAX], root[PATH_MAX], path[PATH_MAX];
	char *line = NULL;
	size_t room = 0;
	FILE *file = fopen("/proc/self/cgroup", "re");

	while (file && getline(&line, &room, file) > 0) { /* ID:CONTROLLERS:PATH */
		char *controllers = strchr(line, ':'),
		     *at = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!at)
			continue;
		*at++ = '\0';
		at[strcspn(at, "\n")] = '\0';
		controllers++;
		controllers[strcspn(controllers, ",")] = '\0';
		if (snprintf(path, sizeof path, "%s", at) < PATH_MAX &&
		    outside_of_job(path, sizeof path, !*controllers) &&
		    read_mount(controllers, path, mount, root))
			enter(mount, root, path);
	}
	free(line);
	if (file)
		fclose(file);
}

int cgroup_join(pid_t other)
{
	static char own[PATH_MAX], path[PATH_MAX], mount[PATH_MAX], root[PATH_MAX];

	for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++) {
		if (!read_path(other, hierarchies[i], path) || !read_path(getpid(), hierarchies[i], own) ||
		    !strcmp(own, path))
			continue;
		if (!read_mount(hierarchies[i], path, mount, root)) {
			errno = ENOENT;
			return -1;
		}
		if ((*hierarchies[i] ? enter(mount, root, path) : enter_beside(mount, root, path)) < 0)
			return -1;
	}
	return 0;
}
