// SPDX-License-Identifier: GPL-2.0-or-later
#include "suspension.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define END_LOOKS 1000 /* half a second */

static pid_t watch; /* 0: none */
static int to_watch = -1;

/* Writes the path of the program to path[size]: it is installed beside the interposer. */
static void watch_path(const char *interposer, char *path, size_t size)
{
	const char *end = strrchr(interposer, '/');

	snprintf(path, size, "%.*s/hami-hpc-watch", (int)(end - interposer), interposer);
}

int suspension_begin(const struct options *opt, uint32_t job_id, const struct hami_limits *job, char *line,
		     size_t size)
{
	char path[PATH_MAX], program[PATH_MAX], id[16];
	const char *argv[8] = {path, "--job", id, "--program", program};
	pid_t started;

	if (job->swap == HAMI_SWAP_NEVER || job->mode != HAMI_MODE_SHARE)
		return 0;
	if (opt->config) {
		argv[5] = "--config";
		argv[6] = opt->config;
	}
	watch_path(opt->interposer, path, sizeof(path));
	snprintf(program, sizeof(program), "%s/suspend", opt->stages);
	snprintf(id, sizeof(id), "%u", job_id);
	started = program_start(argv, &to_watch, line, size);
	if (started > 0)
		watch = started;
	return started > 0 ? 0 : -1;
}

void suspension_task(pid_t task)
{
	if (watch)
		dprintf(to_watch, "%d\n", (int)task);
}

void suspension_end(void)
{
	const struct timespec look = {.tv_nsec = 500 * 1000};

	if (!watch)
		return;
	/*
	 * It ends when it can read. Slurm waits for any child, so its number may long be another's: only one that is
	 * still ours is killed, since a stopped one reads nothing. With contain_spank it is not ours here. A frozen one
	 * does not even end when it is killed, so nobody waits for it for long.
	 */
	dprintf(to_watch, "\n");
	close(to_watch);
	for (int looks = 0; waitpid(watch, NULL, WNOHANG) == 0 && looks < END_LOOKS; looks++) {
		kill(watch, SIGKILL);
		nanosleep(&look, NULL);
	}
	watch = 0;
}
