// SPDX-License-Identifier: GPL-2.0-or-later
/* Two faults of Slurm before 23.02 by which a job has no limits record, and for which it goes back to the queue. */
#ifndef HAMI_SPANK_REQUEUE_H
#define HAMI_SPANK_REQUEUE_H

#include <stdbool.h>

#include "context.h"

/*
 * Refuses the step of a job that has no record because of one of these, and has the job requeued at its end. Returns
 * whether it is one. The job is not at fault, and runs when it is started later.
 *
 * slurmd may treat a job that starts again within two minutes of its last run as that same run, and then
 * runs no prolog (docs/adr/018). A slurmctld that takes over may start jobs on nodes that have not registered with it
 * yet, without all of their shards; their prolog has no units (docs/adr/114).
 */
bool requeue_instead(struct step_context *step);

/* The step has ended: requeues the job, if that was so. */
void requeue_at_end(const struct step_context *step);

#endif
