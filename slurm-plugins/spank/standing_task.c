// SPDX-License-Identifier: GPL-2.0-or-later
#include "standing_task.h"

#include <slurm/slurm.h>

#include "standing.h"

static size_t count(const char *list)
{
	size_t commas = 0;

	for (const char *at = list; *at; at++)
		commas += *at == ',';
	return commas + 1;
}

void standing_start_task(struct step_context *step, spank_t spank)
{
	/* A batch script may have inherited the other one from the step that it was submitted in. */
	const char *name = step->step_id == SLURM_BATCH_SCRIPT ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS";
	char map[STANDING_MAP_SIZE], gpus[2048], visible[2048], uuids[2048];

	if (!standing_read(step->options.run_dir, 0, map) ||
	    spank_getenv(spank, name, gpus, sizeof(gpus)) != ESPANK_SUCCESS ||
	    spank_getenv(spank, "CUDA_VISIBLE_DEVICES", visible, sizeof(visible)) != ESPANK_SUCCESS)
		return;
	if (count(visible) != count(gpus) || !standing_uuids(map, gpus, uuids, sizeof(uuids)))
		return;
	if (context_set_env(step, spank, "CUDA_VISIBLE_DEVICES", uuids) == 0)
		context_set_env(step, spank, "NVIDIA_VISIBLE_DEVICES", uuids);
}
