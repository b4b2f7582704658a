// SPDX-License-Identifier: GPL-2.0-or-later
#include "resize.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=,%-";

int resize_check(const char *text, char *error, size_t size)
{
	size_t length = text ? strlen(text) : 0;

	if (length > 0 && length <= RESIZE_SIZE_MAX && strspn(text, ALLOWED) == length)
		return 0;
	snprintf(error, size,
		 "--vgpu-resize is given no size of a slice; write mem=, cores= or both. Example: "
		 "srun --jobid=JOB --overlap --gres=none --vgpu-resize=mem=16G,cores=60 true");
	return -EINVAL;
}

int resize_run(const struct options *opt, uint32_t job_id, uint32_t uid, const char *text, char *line,
	       size_t size)
{
	char path[PATH_MAX], job[16], user[16];
	const char *argv[10] = {path, "--job", job, "--uid", user, "--size", text};

	if (opt->config) {
		argv[7] = "--config";
		argv[8] = opt->config;
	}
	snprintf(path, sizeof(path), "%s/resize", opt->stages);
	snprintf(job, sizeof(job), "%u", job_id);
	snprintf(user, sizeof(user), "%u", uid);
	return program_run(argv, RESIZE_SECONDS, line, size);
}

void resize_tell(const char *line)
{
	const char *node = getenv("SLURMD_NODENAME");

	dprintf(STDOUT_FILENO, "%s: %s\n", node ? node : "hami_hpc", line);
}
