// SPDX-License-Identifier: GPL-2.0-or-later
/* The remote context: one slurmstepd, one step on this node. */
#ifndef HAMI_SPANK_STEP_H
#define HAMI_SPANK_STEP_H

#include <slurm/spank.h>

#include "options.h"

/*
 * As root, before the tasks exist: decides what the step gets, writes its record, sets its environment. Never fails: a
 * refusal is kept for step_refuse(), because here no message reaches the user yet.
 */
void step_begin(spank_t spank, int argc, char **argv);

/* As the user, with the job's standard error attached. Returns 0, or -1 with the reason told to user and slurmd. */
int step_refuse(void);

/* In a task's process, as root. Returns 0 or -1. */
int step_enter_task(void);

/* In a task's process, as the user, after Slurm's last changes to the environment. Returns 0 or -1. */
int step_task_environment(spank_t spank);

/* As root, after the last task: removes the step's record. */
void step_end(void);

#endif
