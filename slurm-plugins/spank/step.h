// SPDX-License-Identifier: GPL-2.0-or-later
/* The remote context: one slurmstepd, one step on this node. */
#ifndef HAMI_SPANK_STEP_H
#define HAMI_SPANK_STEP_H

#include <slurm/spank.h>

#include "options.h"

/*
 * As root, before the tasks exist: decides what the step gets, writes its record, sets its environment. Never
 * fails: a refusal is kept for step_start_task().
 */
void step_begin(spank_t spank, int argc, char **argv);

/* In a task's process, as root: what its mode of isolation does there. A failure is kept as a refusal. */
void step_enter_task(void);

/*
 * In a task's process, as the user, after Slurm's last change of the environment. Ends the process where the
 * step is refused, with the reason on the task's standard error and in slurmd's log.
 */
void step_start_task(spank_t spank);

/* As root, after the last task: takes back what step_begin() gave the step. */
void step_end(void);

#endif
