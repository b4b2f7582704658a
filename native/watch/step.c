/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

struct process {
	pid_t pid, parent;
	bool stopped;
};

/* Reads /proc/PID/stat: PID (NAME) STATE PARENT ...; the name may have any character. */
static bool read_process(const char *pid, struct process *process)
{
	char path[32], text[512], state;
	const char *end;
	size_t length;
	FILE *file;
	int parent;

	snprintf(path, sizeof path, "/proc/%.10s/stat", pid);
	if (!(file = fopen(path, "re")))
		return false;
	length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	if (!(end = strrchr(text, ')')) || sscanf(end + 1, " %c %d", &state, &parent) != 2)
		return false;
	*process = (struct process){.pid = (pid_t)atoi(pid), .parent = parent, .stopped = state == 'T'};
	return true;
}

static int by_pid(const void *a, const void *b)
{
	const struct process *one = a, *other = b;

	return (one->pid > other->pid) - (one->pid < other->pid);
}

/* Reads all processes, by their ids. Returns their number. */
static size_t read_all(struct process **all)
{
	size_t count = 0, room = 0;
	struct dirent *entry;
	DIR *proc = opendir("/proc");

	*all = NULL;
	while (proc && (entry = readdir(proc))) {
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (count == room) {
			struct process *more = realloc(*all, (room = 2 * room + 256) * sizeof **all);
			if (!more)
				break;
			*all = more;
		}
		count += read_process(entry->d_name, *all + count);
	}
	if (proc)
		closedir(proc);
	if (count)
		qsort(*all, count, sizeof **all, by_pid);
	return count;
}

static bool descends(const struct process *all, size_t count, const struct process *from, pid_t ancestor)
{
	for (int depth = 0; from && depth < DEPTH_MAX; depth++) {
		const struct process parent = {.pid = from->parent};
		if (parent.pid == ancestor)
			return true;
		from = bsearch(&parent, all, count, sizeof *all, by_pid);
	}
	return false;
}

void step_go_on(pid_t slurmstepd)
{
	struct process *all;
	size_t count = slurmstepd > 1 ? read_all(&all) : 0;

	for (size_t i = 0; i < count; i++)
		if (all[i].stopped && descends(all, count, all + i, slurmstepd))
			kill(all[i].pid, SIGCONT);
	if (slurmstepd > 1)
		free(all);
}
