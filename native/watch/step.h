/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of the step that this process watches. */
#ifndef HAMI_WATCH_STEP_H
#define HAMI_WATCH_STEP_H

#include <sys/types.h>

/*
 * Lets those of slurmstepd's descendants go on that are stopped (SIGCONT). One whose parent has ended is not among them;
 * Slurm's SIGTSTP reaches such a one with SignalChildrenProcesses=yes alone.
 */
void step_go_on(pid_t slurmstepd);

#endif
