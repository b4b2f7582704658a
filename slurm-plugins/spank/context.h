// SPDX-License-Identifier: GPL-2.0-or-later
/* The state of the step that this slurmstepd runs, shared by step.c and the isolation backends. */
#ifndef HAMI_SPANK_CONTEXT_H
#define HAMI_SPANK_CONTEXT_H

#include <limits.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>

#include "decide.h"
#include "options.h"

/* Filled in slurmstepd, before the tasks' processes are forked from it. */
struct step_context {
	struct options options;
	uint32_t job_id, step_id;
	uint32_t slice_count; /* of the job on this node */
	enum step_verdict verdict;
	bool is_part;                  /* it has less than its job: step_is_part() */
	char refusal[PATH_MAX + 1024]; /* why no task may start; "" if tasks may start */
};

/* Refuses the step with this reason. A later reason replaces an earlier one. */
__attribute__((format(printf, 2, 3))) void context_refuse(struct step_context *step, const char *format, ...);

/* Sets a variable in the step's environment. On failure or if value is NULL, refuses the step, returns -1. */
int context_set_env(struct step_context *step, spank_t spank, const char *name, const char *value);

#endif
