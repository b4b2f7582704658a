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

#include "container.h"
#include "ldso.h"
#include "preload.h"
#include "record.h"

/* True when begin() has written the step's records. */
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
		context_refuse(
			step,
			"the library that limits it, %s, is not there (%s). Administrator: install "
			"hami_hpc on this node, or correct interposer= in plugstack.conf, or in sshd's PAM line",
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

/* Sets a variable to what is left of it, or removes it if nothing is left. Frees rest. */
static void set_rest(spank_t spank, const char *name, char *rest)
{
	if (rest && *rest)
		spank_setenv(spank, name, rest, 1);
	else
		spank_unsetenv(spank, name);
	free(rest);
}

/* The same for binds of containers, whose files are not there in a step without limits: Apptainer would fail. */
static void drop_binds(const struct step_context *step, spank_t spank)
{
	for (size_t i = 0; i < 2; i++) {
		char **env = NULL; /* setting a variable may have moved it */
		const char *old = NULL;

		if (spank_get_item(spank, S_JOB_ENV, &env) == ESPANK_SUCCESS)
			old = env_value(env, container_variables[i]);
		if (container_binds_has(old, &step->options))
			set_rest(spank, container_variables[i], container_binds_without(old, &step->options));
	}
}

/* Removes what a job submitted from a vGPU job inherits. It would apply limits of a record that is gone. */
static void drop_inherited(const struct step_context *step, spank_t spank, char **env)
{
	const char *old = env_value(env, "LD_PRELOAD");

	if (env_value(env, HAMI_ENV_LIMITS) || preload_has(old, step->options.interposer)) {
		set_rest(spank, "LD_PRELOAD", preload_without(old, step->options.interposer));
		spank_unsetenv(spank, HAMI_ENV_LIMITS);
		spank_unsetenv(spank, HAMI_ENV_CLASS);
	}
	drop_binds(step, spank);
}

/*
 * Sets LD_PRELOAD. With preload=ldso only if the user has libraries in it, which ours then comes before: ld.so loads
 * the others first. Else it stays unset, because programs of an image with another C library, such as Alpine's, fail
 * with ours in it, while nothing but glibc reads /etc/ld.so.preload.
 */
static int set_preload(struct step_context *step, spank_t spank, const char *old)
{
	const char *library = step->options.interposer;
	char *rest = preload_without(old, library), *preload = NULL;
	int rc;

	if (rest && !*rest && step->options.preload == PRELOAD_LDSO) {
		set_rest(spank, "LD_PRELOAD", rest);
		return 0;
	}
	if (rest)
		preload = preload_with(rest, library);
	rc = context_set_env(step, spank, "LD_PRELOAD", preload);
	free(preload);
	free(rest);
	return rc;
}

/* What one of both programs is told by its own variable, the other one takes too where it has none. */
static void set_binds(const struct step_context *step, spank_t spank)
{
	const char *old[2];
	char *value[2], **env = NULL; /* read anew: setting other variables may have moved it */

	if (spank_get_item(spank, S_JOB_ENV, &env) != ESPANK_SUCCESS)
		return;
	for (size_t i = 0; i < 2; i++)
		old[i] = env_value(env, container_variables[i]);
	for (size_t i = 0; i < 2; i++)
		value[i] = container_binds_with(old[i] ? old[i] : old[1 - i], &step->options);
	for (size_t i = 0; i < 2; i++) {
		if (!value[i] || spank_setenv(spank, container_variables[i], value[i], 1) != ESPANK_SUCCESS)
			slurm_error(
				"hami_hpc: job %u step %u: %s is too long to bind the limits into containers of "
				"Apptainer; they will not be limited",
				step->job_id, step->step_id, container_variables[i]);
		free(value[i]);
	}
}

static int set_step_env(struct step_context *step, spank_t spank, char **env,
			const struct hami_limits *limits)
{
	char path[PATH_MAX];
	int rc;

	snprintf(path, sizeof(path), "%s/jobs/%u/" HAMI_FILE_STEP_LIMITS_FORMAT, step->options.run_dir,
		 step->job_id, step->step_id);
	rc = set_preload(step, spank, env_value(env, "LD_PRELOAD"));
	if (rc == 0)
		rc = context_set_env(step, spank, HAMI_ENV_LIMITS, path);
	if (rc == 0)
		rc = context_set_env(step, spank, HAMI_ENV_CLASS, limits->class_name);
	if (rc == 0 && step->options.preload == PRELOAD_LDSO)
		set_binds(step, spank);
	return rc;
}

static void begin(struct step_context *step, spank_t spank, char **env, int dir,
		  const struct hami_limits *limits)
{
	int rc;

	if (check_interposer(step) < 0)
		return;
	record_written = true; /* also if one of them fails: end() removes the others */
	/* That of slice 0 is the last: programs find the others by it. */
	for (uint32_t slice = step->slice_count; slice-- > 0;) {
		rc = record_write_step(dir, &limits[slice]);
		if (rc < 0) {
			context_refuse(step,
				       "its limits record could not be written to %s/jobs/%u (%s). "
				       "Administrator: make room",
				       step->options.run_dir, step->job_id, strerror(-rc));
			return;
		}
	}
	if (step->options.preload == PRELOAD_LDSO &&
	    ldso_prepare(dir, &step->options, step->slice_count, step->refusal, sizeof(step->refusal)) < 0)
		return;
	if (set_step_env(step, spank, env, limits) == 0)
		record_note_first_step(dir, limits->created_unix_ns);
}

static void enter_task(struct step_context *step)
{
	if (record_written && step->options.preload == PRELOAD_LDSO)
		ldso_enter(&step->options, step->job_id, step->step_id, step->slice_count, step->refusal,
			   sizeof(step->refusal));
}

static void end(const struct step_context *step)
{
	int dir, rc;

	if (!record_written)
		return;
	dir = record_open_dir(step->options.run_dir, step->job_id);
	if (dir < 0)
		return; /* the epilog has removed it all */
	for (uint32_t slice = 0; slice < step->slice_count; slice++) {
		rc = record_remove_step(dir, step->step_id, slice);
		if (rc < 0)
			slurm_error(
				"hami_hpc: job %u step %u: its limits record could not be removed (%s); the "
				"epilog will.",
				step->job_id, step->step_id, strerror(-rc));
	}
	close(dir);
}

const struct backend share_backend = {
	.begin = begin,
	.enter_task = enter_task,
	.end = end,
	.drop_inherited = drop_inherited,
};
