// SPDX-License-Identifier: GPL-2.0-or-later
#include "refusal.h"

#include <stdio.h>

#include "hami_contract.h"

#define HOW_TO_ASK                                                                                           \
	"Ask with srun --gres=vgpu:mem=4G,cores=25, with no --gres for all that the job has, "               \
	"or with --gres=none for a step without GPU"

static const char *constant_text(enum step_verdict verdict)
{
	switch (verdict) {
	case STEP_NO_PLUGINS:
		return "it holds gres/shard, and slurmd on this node has not loaded hami_hpc's gres "
		       "plugins, which say how much. Administrator: install the gres_vgpu*.so that were "
		       "built for exactly this Slurm into PluginDir and restart slurmd";
	case STEP_BARE_SHARDS:
		return "it holds gres/shard and no vGPU. Shards alone fence neither memory nor time, and "
		       "this cluster does not allow them. Ask with --gres=vgpu:mem=8G,cores=50. If you did, "
		       "tell the administrator: job_submit.lua has not translated it";
	case STEP_WHOLE_SLICED:
		return "it asks for a vGPU in a job that holds whole GPUs. Ask with srun --gres=gpu:1, or "
		       "with no --gres for all that the job has";
	case STEP_SHARDS_ALONE:
		return "it takes gres/shard of the job's vGPU without saying how much memory. " HOW_TO_ASK;
	case STEP_UNITS_ALONE:
		return "it takes memory or cores of the job's vGPU without gres/shard. " HOW_TO_ASK;
	case STEP_NO_RECORD:
	case STEP_NOT_OURS:
	case STEP_WHOLE:
	case STEP_FENCED:
	case STEP_WITHOUT_GPU:
		break;
	}
	return "";
}

void refusal_write(enum step_verdict verdict, const char *run_dir, uint32_t job_id, char *text, size_t size)
{
	if (verdict == STEP_NO_RECORD)
		snprintf(text, size,
			 "it holds a vGPU, but the node has no %s/jobs/%u/" HAMI_FILE_JOB_LIMITS
			 " that would fence it. The prolog writes it. Administrator: check Prolog= in "
			 "slurm.conf, the gres_vgpu*.so in slurmctld's PluginDir, and slurmd's log; then "
			 "submit the job again",
			 run_dir, job_id);
	else
		snprintf(text, size, "%s", constant_text(verdict));
}
