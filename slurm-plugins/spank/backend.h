// SPDX-License-Identifier: GPL-2.0-or-later
/* Gives a step its part of the job's slice: one backend for each mode of isolation, listed in backend.c. */
#ifndef HAMI_SPANK_BACKEND_H
#define HAMI_SPANK_BACKEND_H

#include <slurm/spank.h>
#include <stdint.h>

#include "context.h"
#include "hami_contract.h"

/* Each function reports a failure with context_refuse(); then no task of the step starts. */
struct backend {
	/*
	 * Gives the step the step->slice_count slices that limits[] describe, of which only mode=share has more than
	 * one. Called as root in slurmstepd, before any task. dir is the job's directory, env the step's environment;
	 * setting a variable may move env.
	 */
	void (*begin)(struct step_context *step, spank_t spank, char **env, int dir,
		      const struct hami_limits *limits);

	/* Sets up one task. Called as root in the task's process, before it changes to the user. */
	void (*enter_task)(struct step_context *step);

	/*
	 * Sets what Slurm's gres plugins would overwrite before. Called as the user in the task's process, after Slurm's
	 * last change of the environment. NULL: nothing.
	 */
	void (*start_task)(struct step_context *step, spank_t spank);

	/* Takes back what begin() gave. Called as root in slurmstepd, after the last task and only after begin(). */
	void (*end)(const struct step_context *step);

	/*
	 * Removes what the job inherited if it was submitted from within a slice of this mode. Called as root in
	 * slurmstepd, for a step without a slice, or with one of another mode.
	 */
	void (*drop_inherited)(const struct step_context *step, spank_t spank, char **env);
};

/* Returns the backend of a mode (enum HAMI_MODE_*), or NULL if this plugin has none. */
const struct backend *backend_of(uint32_t mode);

/* Calls drop_inherited() of every backend but `own`, which may be NULL. The step's environment may move. */
void backend_drop_inherited(const struct step_context *step, spank_t spank, const struct backend *own);

#endif
