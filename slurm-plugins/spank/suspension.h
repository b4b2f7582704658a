// SPDX-License-Identifier: GPL-2.0-or-later
/* A process of root's in the step that sees Slurm suspend and resume it: native/watch/watch.c, docs/adr/079. */
#ifndef HAMI_SPANK_SUSPENSION_H
#define HAMI_SPANK_SUSPENSION_H

#include <sys/types.h>

#include "context.h"
#include "record.h"

/*
 * Before any task: starts the process, if the memory of the job's programs can be moved. A failure is one line in slurmd's
 * log, and the step runs as ever: its memory stays on the GPU when it is suspended.
 */
void suspension_begin(const struct step_context *step, const struct hami_limits *job);

/* The step's first task has this process, which Slurm's tracking knows by now. */
void suspension_task(pid_t task);

/* All tasks have ended: so does the process. Slurm would wait for it. */
void suspension_end(void);

#endif
