// SPDX-License-Identifier: GPL-2.0-or-later
#include "suspension.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static pid_t watch; /* 0: none */
static int to_watch = -1;

/* Writes the path of the program to path[size]: it is installed beside the interposer. */
static void watch_path(const char *interposer, char *path, size_t size)
{
	const char *end = strrchr(interposer, '/');

	snprintf(path, size, "%.*s/hami-hpc-watch", (int)(end - interposer), interposer);
}

void suspension_begin(const struct step_context *step, const struct hami_limits *job)
{
	char path[PATH_MAX], program[PATH_MAX], id[16], line[1024];
	const char *argv[8] = {path, "--job", id, "--program", program};
	pid_t started;

	if (job->swap == HAMI_SWAP_NEVER || job->mode != HAMI_MODE_SHARE)
		return;
	if (step->options.config) {
		argv[5] = "--config";
		argv[6] = step->options.config;
	}
	watch_path(step->options.interposer, path, sizeof(path));
	snprintf(program, sizeof(program), "%s/suspend", step->options.stages);
	snprintf(id, sizeof(id), "%u", step->job_id);
	started = program_start(argv, &to_watch, line, sizeof(line));
	if (started > 0)
		watch = started;
	else
		slurm_error("hami_hpc: job %u keeps its device memory when it is suspended: %s", step->job_id,
			    line);
}

void suspension_task(pid_t task)
{
	if (watch)
		dprintf(to_watch, "%d\n", (int)task);
}

void suspension_end(void)
{
	if (!watch)
		return;
	close(to_watch);
	kill(watch, SIGKILL);
	/* Slurm may have waited for it already, as for any child. */
	while (waitpid(watch, NULL, 0) < 0 && errno == EINTR)
		continue;
	watch = 0;
}
