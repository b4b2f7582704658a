// SPDX-License-Identifier: GPL-2.0-or-later
#include "job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "record.h"

static uint64_t unix_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Returns 1 and the record, 0 if the job has none here, -1 if it cannot be trusted (refuses the step). */
static int read_job(struct step_context *step, int dir, uint32_t uid, struct hami_limits *job)
{
	int rc = record_read_job(dir, 0, step->job_id, uid, job);

	if (rc == 0)
		return 1;
	if (rc == -ENOENT)
		return 0;
	context_refuse(
		step,
		"its job's limits record %s/jobs/%u/" HAMI_FILE_JOB_LIMITS
		" %s. Administrator: check what slurmd's log says of the prolog, then cancel the job and "
		"submit it again",
		step->options.run_dir, step->job_id,
		rc > 0 ? record_fault((enum record_fault)rc) : strerror(-rc));
	return -1;
}

int job_read_kind(struct step_context *step, int dir, uint32_t uid, struct hami_limits *job)
{
	int has_record = dir < 0 ? 0 : read_job(step, dir, uid, job);

	if (has_record < 0)
		return -1;
	if (has_record)
		return JOB_SLICE;
	return dir >= 0 && record_is_whole(dir, 0) ? JOB_WHOLE : JOB_WITHOUT_RECORD;
}

bool job_is_refused(struct step_context *step, int dir)
{
	char reason[1024];

	if (dir < 0 || !record_read_refusal(dir, 0, reason, sizeof(reason)))
		return false;
	context_refuse(step, "%s", reason);
	return true;
}

/* Reads the record of a later slice of the job. Returns whether it can be trusted; else refuses the step. */
static bool read_slice(struct step_context *step, int dir, const struct hami_limits *job, uint32_t slice,
		       struct hami_limits *limits)
{
	int rc = record_read_slice(dir, 0, job, slice, limits);
	char name[64];

	if (rc == 0)
		return true;
	record_job_name(name, sizeof(name), slice);
	context_refuse(
		step,
		"its job's limits record %s/jobs/%u/%s %s. Administrator: run hami-hpc reconcile, then start "
		"the step again",
		step->options.run_dir, step->job_id, name,
		rc > 0 ? record_fault((enum record_fault)rc) : strerror(-rc));
	return false;
}

const struct backend *job_begin_slices(struct step_context *step, spank_t spank, int dir,
				       const struct hami_limits *job, const struct step_units *units,
				       struct hami_limits *own)
{
	static const char *const modes[] = HAMI_MODE_NAMES;
	const struct backend *backend = backend_of(job->mode);
	struct hami_limits of_job = *job;
	const uint64_t now = unix_ns();
	char **env = NULL;

	if (!backend) {
		context_refuse(
			step,
			"its job's slice is isolated by mode=%s, which this node's SPANK plugin does not "
			"know. Administrator: install one version of hami_hpc on this node",
			modes[job->mode]);
		return NULL;
	}
	step->slice_count = record_slice_count(job);
	for (uint32_t slice = 0; slice < step->slice_count; slice++) {
		if (slice > 0 && !read_slice(step, dir, job, slice, &of_job))
			return backend;
		step_limits(&of_job, units, step->verdict, step->step_id, now, &own[slice]);
	}
	step->is_part = step_is_part(job, &own[0]);
	backend_drop_inherited(step, spank, backend);
	if (spank_get_item(spank, S_JOB_ENV, &env) == ESPANK_SUCCESS)
		backend->begin(step, spank, env, dir, own);
	else
		context_refuse(step, "its environment cannot be read. Administrator: rebuild hami_hpc's "
				     "plugins for this Slurm");
	return backend;
}
