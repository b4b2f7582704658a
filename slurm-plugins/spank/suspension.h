// SPDX-License-Identifier: GPL-2.0-or-later
/* A process of root's in the step that sees Slurm suspend and resume it: native/watch/watch.c, docs/adr/079. */
#ifndef HAMI_SPANK_SUSPENSION_H
#define HAMI_SPANK_SUSPENSION_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "options.h"
#include "record.h"

/*
 * Before any task: starts the process, if the memory of the job's programs can be moved. Returns 0, or -1 with what is wrong
 * in line[size]: then the step's memory stays on the GPU when it is suspended.
 */
int suspension_begin(const struct options *opt, uint32_t job_id, const struct hami_limits *job, char *line,
		     size_t size);

/* The step's first task has this process, which Slurm's tracking knows by now. */
void suspension_task(pid_t task);

/* All tasks have ended: so does the process. Slurm would wait for it. */
void suspension_end(void);

#endif
