// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * All sessions of a job are its extern step, which has all of the job's units. Its records are written at each session
 * and removed with the job's directory by the epilog alone: another session may need them still, and Slurm ends all of
 * them with the job. Each file is renamed into place, so a process that is killed in between leaves nothing that
 * anybody reads.
 */
#include "session.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "record.h"

/*
 * Shows the session's programs the GPUs of its slices alone. A step has Slurm's own list. By UUID: the number of a GPU
 * depends on which others the device cgroup lets programs open.
 */
static void set_devices(struct step_context *step, spank_t spank, const struct hami_limits *own)
{
	char uuids[RECORD_SLICES_MAX * (sizeof(own->gpu_uuid) + 1)];
	size_t used = 0;

	for (uint32_t slice = 0; slice < step->slice_count; slice++)
		used += (size_t)snprintf(uuids + used, sizeof(uuids) - used, "%s%s", slice ? "," : "",
					 own[slice].gpu_uuid);
	context_set_env(step, spank, "CUDA_VISIBLE_DEVICES", uuids);
}

static void begin(struct step_context *step, spank_t spank, int dir, const struct hami_limits *job)
{
	static struct hami_limits own[RECORD_SLICES_MAX];
	const struct step_units all = {.slices = 0}; /* no units of its own: it has all of its job's */
	const struct backend *backend;

	step->step_id = SLURM_EXTERN_CONT;
	step->verdict = STEP_FENCED;
	backend = job_begin_slices(step, spank, dir, job, &all, own);
	if (!*step->refusal)
		set_devices(step, spank, own);
	if (!*step->refusal && backend->start_task)
		backend->start_task(step, spank);
	if (!*step->refusal)
		backend->enter_task(step);
}

void session_limit(struct step_context *step, spank_t spank, uint32_t uid)
{
	int dir = record_open_dir(step->options.run_dir, step->job_id);
	struct hami_limits job;

	if (dir == -ENOENT)
		return;
	if (dir < 0) {
		context_refuse(step, "%s/jobs/%u cannot be opened (%s). Administrator: check that directory",
			       step->options.run_dir, step->job_id, strerror(-dir));
		return;
	}
	if (!job_is_refused(step, dir) && job_read_kind(step, dir, uid, &job) == JOB_SLICE)
		begin(step, spank, dir, &job);
	close(dir);
}
