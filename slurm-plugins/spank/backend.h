// SPDX-License-Identifier: GPL-2.0-or-later
/* What a step gets of its job's slice: one backend for each mode of isolation, in the table of backend.c. */
#ifndef HAMI_SPANK_BACKEND_H
#define HAMI_SPANK_BACKEND_H

#include <slurm/spank.h>
#include <stdint.h>

#include "context.h"
#include "hami_contract.h"

/* A failure of any of these is told by context_refuse(), and no task of the step starts. */
struct backend {
	/*
	 * As root in slurmstepd, before any task: gives the step the slice that limits describes. dir is the job's
	 * directory, env the step's environment; setting a variable may move env.
	 */
	void (*begin)(struct step_context *step, spank_t spank, char **env, int dir,
		      const struct hami_limits *limits);

	/* As root in each task's process, before it becomes the user's. */
	void (*enter_task)(struct step_context *step);

	/* As root in slurmstepd, after the last task, and only after begin(). */
	void (*end)(const struct step_context *step);

	/*
	 * As root in slurmstepd, for a step without a slice: removes what a job submitted from within a slice of this
	 * mode has inherited of it.
	 */
	void (*drop_inherited)(const struct step_context *step, spank_t spank, char **env);
};

/* The backend of a mode (enum HAMI_MODE_*), or NULL where this plugin has none. */
const struct backend *backend_of(uint32_t mode);

/* Calls drop_inherited() of every backend. */
void backend_drop_inherited(const struct step_context *step, spank_t spank, char **env);

#endif
