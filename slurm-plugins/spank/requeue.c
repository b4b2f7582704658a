// SPDX-License-Identifier: GPL-2.0-or-later
#include "requeue.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0)
/* A job without a record fails after this many restarts, because then the cause is another one. */
enum { MAX_REQUEUES = 10 };

/* What slurmctld has of a job; all 0 where it does not answer. */
struct shown {
	uint32_t restarts;               /* SPANK has an item for them, but Slurm 22.05 never sets it */
	unsigned long long asked, given; /* shards on all nodes */
	bool is_batch;
};

#define AGAIN "It is requeued and starts again after two minutes; you need not do anything"

static bool is_due; /* requeue the job when its step has ended */

/* Returns the shards in cpu=1,gres/shard=279,gres/vgpu=1. */
static unsigned long long shards_of(const char *tres)
{
	static const char name[] = "gres/shard=";

	for (const char *item = tres; item; item = strchr(item, ',')) {
		item += *item == ',';
		if (strncmp(item, name, sizeof(name) - 1) == 0)
			return strtoull(item + sizeof(name) - 1, NULL, 10);
	}
	return 0;
}

static struct shown shown_of(uint32_t job_id)
{
	job_info_msg_t *info = NULL;
	struct shown shown = {0};

	if (slurm_load_job(&info, job_id, SHOW_ALL) != SLURM_SUCCESS)
		return shown;
	for (uint32_t i = 0; i < info->record_count; i++) {
		const slurm_job_info_t *job = &info->job_array[i];

		if (job->job_id != job_id) /* an array's id is also that of one of its tasks */
			continue;
		shown.restarts = job->restart_cnt;
		shown.asked = shards_of(job->tres_req_str);
		shown.given = shards_of(job->tres_alloc_str);
		shown.is_batch = job->batch_flag != 0;
	}
	slurm_free_job_info_msg(info);
	return shown;
}

bool requeue_instead(struct step_context *step)
{
	struct shown job = shown_of(step->job_id);

	if (job.restarts > MAX_REQUEUES)
		return false;
	if (job.given < job.asked)
		context_refuse(
			step,
			"slurmctld gave it %llu of the %llu shards of GPUs that it asked for, as it may while "
			"the node has not registered with a controller that has just taken over. %s",
			job.given, job.asked, job.is_batch ? AGAIN : "Submit it again");
	else if (job.restarts > 0)
		context_refuse(
			step,
			"slurmd did not run its prolog, because it was started within two minutes of its last "
			"run's end. " AGAIN ". "
			"Administrator: do not change a requeued job's start time. Slurm 23.02 and later do not "
			"have this fault");
	else
		return false;
	is_due = job.is_batch;
	return true;
}

void requeue_at_end(const struct step_context *step)
{
	if (is_due && slurm_requeue(step->job_id, 0) != SLURM_SUCCESS)
		slurm_error("hami_hpc: job %u could not be requeued (%s). Administrator: scontrol requeue %u",
			    step->job_id, slurm_strerror(slurm_get_errno()), step->job_id);
}
#else
bool requeue_instead(struct step_context *step)
{
	(void)step;
	return false;
}

void requeue_at_end(const struct step_context *step)
{
	(void)step;
}
#endif
