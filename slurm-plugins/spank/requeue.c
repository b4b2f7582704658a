// SPDX-License-Identifier: GPL-2.0-or-later
#include "requeue.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0)
/* A job without a record fails after this many restarts, because then the cause is another one. */
enum { MAX_REQUEUES = 10 };

static bool is_skipped; /* requeue the job when its step has ended */

/* Asks slurmctld for the job's restarts. SPANK has an item for them, but this Slurm never sets it. */
static uint32_t restarts_of(uint32_t job_id)
{
	job_info_msg_t *info = NULL;
	uint32_t restarts = 0;

	if (slurm_load_job(&info, job_id, SHOW_ALL) == SLURM_SUCCESS && info && info->record_count > 0)
		restarts = info->job_array[0].restart_cnt;
	if (info)
		slurm_free_job_info_msg(info);
	return restarts;
}

bool requeue_skipped_prolog(struct step_context *step)
{
	uint32_t restarts = restarts_of(step->job_id);

	if (restarts == 0 || restarts > MAX_REQUEUES)
		return false;
	is_skipped = true;
	context_refuse(
		step,
		"slurmd did not run its prolog, because it was started within two minutes of its last "
		"run's end. It is requeued and starts again after two minutes; you need not do anything. "
		"Administrator: do not change a requeued job's start time. Slurm 23.02 and later do not "
		"have this fault");
	return true;
}

void requeue_at_end(const struct step_context *step)
{
	if (is_skipped && slurm_requeue(step->job_id, 0) != SLURM_SUCCESS)
		slurm_error("hami_hpc: job %u could not be requeued (%s). Administrator: scontrol requeue %u",
			    step->job_id, slurm_strerror(slurm_get_errno()), step->job_id);
}
#else
bool requeue_skipped_prolog(struct step_context *step)
{
	(void)step;
	return false;
}

void requeue_at_end(const struct step_context *step)
{
	(void)step;
}
#endif
