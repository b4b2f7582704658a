// SPDX-License-Identifier: GPL-2.0-or-later
/* A fault of Slurm before 23.02: a job that starts again soon after its last run's end may have no prolog. */
#ifndef HAMI_SPANK_REQUEUE_H
#define HAMI_SPANK_REQUEUE_H

#include <stdbool.h>

#include "context.h"

/*
 * Refuses the step of a job whose prolog slurmd did not run, and has the job requeued at its end. Returns whether it is
 * one. This slurmd may treat a job that starts again within two minutes of its last run as that same run, and then runs no
 * prolog (docs/adr/018). The job is not at fault, and runs when it is started later.
 */
bool requeue_skipped_prolog(struct step_context *step);

/* The step has ended: requeues the job, if that was so. */
void requeue_at_end(const struct step_context *step);

#endif
