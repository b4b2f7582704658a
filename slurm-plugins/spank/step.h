// SPDX-License-Identifier: GPL-2.0-or-later
/* The callbacks of the remote context: one slurmstepd, which runs one step on this node. */
#ifndef HAMI_SPANK_STEP_H
#define HAMI_SPANK_STEP_H

#include <slurm/spank.h>

#include "bind.h"
#include "options.h"

/*
 * Decides what the step gets, writes its record, sets its environment. Called as root, before the tasks
 * exist. Never fails: it keeps a refusal for step_start_task().
 */
void step_begin(spank_t spank, int argc, char **argv);

/* Keep what --vgpu-bind, --vgpu-torch and --vgpu-resize say. Called before step_begin(), if the option was given. */
void step_set_bind(enum bind_mode mode);
void step_set_torch(void);
void step_set_size(const char *text);

/* Sets up the isolation in a task's process. Called as root. Keeps a failure as a refusal. */
void step_enter_task(void);

/*
 * Ends the process if the step is refused, with the reason on the task's standard error and in slurmd's log.
 * Called in a task's process, as the user, after Slurm's last change of the environment.
 */
void step_start_task(spank_t spank);

/* Called in slurmstepd, as root: a task's process is there and has not begun; a task has ended. */
void step_task_forked(spank_t spank);
void step_task_ended(spank_t spank);

/* Takes back what step_begin() gave the step. Called as root, after the last task. */
void step_end(void);

#endif
