// SPDX-License-Identifier: GPL-2.0-or-later
#include "mig.h"

#include <string.h>

#include "preload.h"
#include "record.h"

#define CONTAINERS "NVIDIA_VISIBLE_DEVICES" /* what NVIDIA's container toolkit passes into a container */

/* The job's MIG device; "" if the step has no GPU. */
static char device[RECORD_MIG_SIZE];

static int set_devices(struct step_context *step, spank_t spank)
{
	int rc = context_set_env(step, spank, "CUDA_VISIBLE_DEVICES", device);

	return rc == 0 ? context_set_env(step, spank, CONTAINERS, device) : rc;
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
	if (context_set_env(step, spank, HAMI_ENV_CLASS, limits->class_name) == 0)
		record_note_first_step(dir, limits->created_unix_ns);
}

static void enter_task(struct step_context *step)
{
	(void)step;
}

/* Again in the task: Slurm's gres plugins set the variable of each task after begin(). */
static void start_task(struct step_context *step, spank_t spank)
{
	if (*device)
		set_devices(step, spank);
}

static void end(const struct step_context *step)
{
	(void)step;
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
