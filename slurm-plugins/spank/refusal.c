// SPDX-License-Identifier: GPL-2.0-or-later
#include "refusal.h"

#include <stdio.h>

#include "hami_contract.h"

#define HOW_TO_ASK                                                                                           \
	"Use srun --gres=vgpu:mem=4G,cores=25, or no --gres for all that the job has, "                      \
	"or --gres=none for a step without GPU"

static const char *constant_text(enum step_verdict verdict)
{
	switch (verdict) {
	case STEP_NO_PLUGINS:
		return "it holds gres/shard, and slurmd on this node has not loaded hami_hpc's gres "
		       "plugins, which pass its memory and cores. Administrator: install hami_hpc built for "
		       "exactly this Slurm, whose gres_vgpu*.so belong into PluginDir, and restart slurmd; "
		       "hami-hpc doctor says what is there";
	case STEP_BARE_SHARDS:
		return "it holds gres/shard and no vGPU. Shards alone limit neither memory nor time, and "
		       "this cluster does not allow them. Use --gres=vgpu:mem=8G,cores=50. If you did, "
		       "tell the administrator: job_submit.lua did not translate it";
	case STEP_WHOLE_SLICED:
		return "it asks for a vGPU in a job that holds whole GPUs. Use srun --gres=gpu:1, or "
		       "no --gres for all that the job has";
	case STEP_SHARDS_ALONE:
		return "it asks for gres/shard of the job's vGPU without memory and cores. " HOW_TO_ASK;
	case STEP_UNITS_ALONE:
		return "it asks for memory or cores of the job's vGPU without gres/shard. " HOW_TO_ASK;
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
			 "it holds a vGPU, but its limits record %s/jobs/%u/" HAMI_FILE_JOB_LIMITS
			 " does not exist. The prolog writes it. Administrator: check Prolog= in "
			 "slurm.conf, the gres_vgpu*.so in slurmctld's PluginDir, and slurmd's log; then "
			 "submit the job again",
			 run_dir, job_id);
	else
		snprintf(text, size, "%s", constant_text(verdict));
}
