// SPDX-License-Identifier: GPL-2.0-or-later
#include "mig.h"

#include <stdio.h>
#include <string.h>

#include "record.h"
#include "share.h"

#define CONTAINERS "NVIDIA_VISIBLE_DEVICES" /* what NVIDIA's container toolkit passes into a container */

/* The job's MIG device; "" if the step has no GPU. */
static char device[RECORD_MIG_SIZE];

static int set_devices(struct step_context *step, spank_t spank)
{
	int rc = context_set_env(step, spank, "CUDA_VISIBLE_DEVICES", device);

	return rc == 0 ? context_set_env(step, spank, CONTAINERS, device) : rc;
}

/* Limits a part of the job's instance as mode=share limits a part of a GPU: by the interposer, on the instance. */
static void begin_part(struct step_context *step, spank_t spank, int dir, const struct hami_limits *limits)
{
	static struct hami_limits part;
	char **env = NULL; /* set_devices() may have moved it */

	part = *limits;
	snprintf(part.device_uuid, sizeof(part.device_uuid), "%s", device);
	if (spank_get_item(spank, S_JOB_ENV, &env) == ESPANK_SUCCESS)
		share_backend.begin(step, spank, env, dir, &part);
	else
		context_refuse(
			step, "Slurm did not pass its environment. Administrator: rebuild hami_hpc's plugins "
			      "for this Slurm");
}

static void begin(struct step_context *step, spank_t spank, char **env, int dir,
		  const struct hami_limits *limits)
{
	(void)env;
	if (step->verdict == STEP_FENCED && !record_read_mig(dir, 0, device)) {
		context_refuse(step,
			       "its job's MIG instance is not noted in %s/jobs/%u/" HAMI_FILE_MIG
			       ". Administrator: check what slurmd's log says of the prolog, then cancel the "
			       "job and submit it again",
			       step->options.run_dir, step->job_id);
		return;
	}
	if (step->verdict == STEP_FENCED && set_devices(step, spank) < 0)
		return;
	if (step->verdict == STEP_FENCED && step->is_part)
		begin_part(step, spank, dir, limits);
	else if (context_set_env(step, spank, HAMI_ENV_CLASS, limits->class_name) == 0)
		record_note_first_step(dir, limits->created_unix_ns);
}

/* Nothing, unless begin_part() wrote a record; the same in end(). */
static void enter_task(struct step_context *step)
{
	share_backend.enter_task(step);
}

/* Again in the task: Slurm's gres plugins set the variable of each task after begin(). */
static void start_task(struct step_context *step, spank_t spank)
{
	if (*device)
		set_devices(step, spank);
}

static void end(const struct step_context *step)
{
	share_backend.end(step);
}

/* The device is another job's, which this one cannot open. Slurm itself sets CUDA_VISIBLE_DEVICES. */
static void drop_inherited(const struct step_context *step, spank_t spank, char **env)
{
	const char *old = env_value(env, CONTAINERS);

	(void)step;
	if (old && strncmp(old, "MIG-", 4) == 0)
		spank_unsetenv(spank, CONTAINERS);
}

const struct backend mig_backend = {
	.begin = begin,
	.enter_task = enter_task,
	.start_task = start_task,
	.end = end,
	.drop_inherited = drop_inherited,
};
