// SPDX-License-Identifier: GPL-2.0-or-later
#include "share.h"

#include <errno.h>
#include <limits.h>
#include <slurm/slurm.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ldso.h"
#include "preload.h"
#include "record.h"

/* True when begin() has written the step's record. */
static bool record_written;

/*
 * Refuses the step if the interposer cannot be preloaded. ld.so only warns about that, and the step would run
 * without limits.
 */
static int check_interposer(struct step_context *step)
{
	const char *path = step->options.interposer;
	struct stat st;

	if (stat(path, &st) < 0) {
		context_refuse(step,
			       "the library that limits it, %s, is not there (%s). Administrator: install "
			       "hami_hpc on this node, or correct interposer= in plugstack.conf",
			       path, strerror(errno));
		return -1;
	}
	if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) ||
	    !(st.st_mode & S_IROTH)) {
		context_refuse(step,
			       "the library that limits it, %s, must be a file of root, readable by all and "
			       "writable by root only. Administrator: install hami_hpc on this node again",
			       path);
		return -1;
	}
	return 0;
}

/* Removes what a job submitted from a vGPU job inherits. It would apply limits of a record that is gone. */
static void drop_inherited(const struct step_context *step, spank_t spank, char **env)
{
	const char *old = env_value(env, "LD_PRELOAD");
	char *rest;

	if (!env_value(env, HAMI_ENV_LIMITS) && !preload_has(old, step->options.interposer))
		return;
	rest = preload_without(old, step->options.interposer);
	if (rest && *rest)
		spank_setenv(spank, "LD_PRELOAD", rest, 1);
	else
		spank_unsetenv(spank, "LD_PRELOAD");
	free(rest);
	spank_unsetenv(spank, HAMI_ENV_LIMITS);
	spank_unsetenv(spank, HAMI_ENV_CLASS);
}

static int set_step_env(struct step_context *step, spank_t spank, char **env,
			const struct hami_limits *limits)
{
	char path[PATH_MAX];
	char *preload;
	int rc;

	snprintf(path, sizeof(path), "%s/jobs/%u/" HAMI_FILE_STEP_LIMITS_FORMAT, step->options.run_dir,
		 step->job_id, step->step_id);
	/* Read env before variables are set, because that may move it. */
	preload = preload_with(env_value(env, "LD_PRELOAD"), step->options.interposer);
	/* Set with preload=ldso too: containers have an /etc of their own, and some pass LD_PRELOAD on. */
	rc = context_set_env(step, spank, "LD_PRELOAD", preload);
	free(preload);
	if (rc == 0)
		rc = context_set_env(step, spank, HAMI_ENV_LIMITS, path);
	if (rc == 0)
		rc = context_set_env(step, spank, HAMI_ENV_CLASS, limits->class_name);
	return rc;
}

static void begin(struct step_context *step, spank_t spank, char **env, int dir,
		  const struct hami_limits *limits)
{
	int rc;

	if (check_interposer(step) < 0)
		return;
	rc = record_write_step(dir, limits);
	if (rc < 0) {
		context_refuse(
			step,
			"its limits record could not be written to %s/jobs/%u (%s). Administrator: make room",
			step->options.run_dir, step->job_id, strerror(-rc));
		return;
	}
	record_written = true;
	if (step->options.preload == PRELOAD_LDSO &&
	    ldso_prepare(dir, &step->options, step->refusal, sizeof(step->refusal)) < 0)
		return;
	if (set_step_env(step, spank, env, limits) == 0)
		record_note_first_step(dir, limits->created_unix_ns);
}

static void enter_task(struct step_context *step)
{
	if (record_written && step->options.preload == PRELOAD_LDSO)
		ldso_enter(&step->options, step->job_id, step->step_id, step->refusal, sizeof(step->refusal));
}

static void end(const struct step_context *step)
{
	int dir, rc;

	if (!record_written)
		return;
	dir = record_open_dir(step->options.run_dir, step->job_id);
	if (dir < 0)
		return; /* the epilog has removed it all */
	rc = record_remove_step(dir, step->step_id);
	if (rc < 0)
		slurm_error(
			"hami_hpc: job %u step %u: its limits record could not be removed (%s); the epilog will.",
			step->job_id, step->step_id, strerror(-rc));
	close(dir);
}

const struct backend share_backend = {
	.begin = begin,
	.enter_task = enter_task,
	.end = end,
	.drop_inherited = drop_inherited,
};
