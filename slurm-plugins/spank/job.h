// SPDX-License-Identifier: GPL-2.0-or-later
/* What the prolog left of a job on this node, for a step of it and for a session in its extern step (pam/). */
#ifndef HAMI_SPANK_JOB_H
#define HAMI_SPANK_JOB_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "context.h"
#include "decide.h"
#include "hami_contract.h"

/*
 * Returns the kind of job that the prolog recorded in dir (negative: there is no directory), or -1 if the record cannot
 * be trusted (refuses the step). Sets *job only for JOB_SLICE.
 */
int job_read_kind(struct step_context *step, int dir, uint32_t uid, struct hami_limits *job);

/*
 * Refuses the step if the prolog refused the job, and returns whether it did. A prolog of Slurm cannot fail a job
 * without draining the node, so ours writes the reason to a file instead.
 */
bool job_is_refused(struct step_context *step, int dir);

/*
 * Gives the step its part of the job's slices: own[RECORD_SLICES_MAX] has the records of it then. Refuses the step if
 * that fails. Returns the backend whose other functions are to be called for the step; NULL for none.
 */
const struct backend *job_begin_slices(struct step_context *step, spank_t spank, int dir,
				       const struct hami_limits *job, const struct step_units *units,
				       struct hami_limits *own);

#endif
