// SPDX-License-Identifier: GPL-2.0-or-later
#include "torch.h"

#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"

/* What one task knows of its step. */
struct torch_task {
	uint32_t rank, world_size, local_rank, local_world_size, node_count;
};

static bool read_task(spank_t spank, struct torch_task *task)
{
	return spank_get_item(spank, S_TASK_GLOBAL_ID, &task->rank) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &task->world_size) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_TASK_ID, &task->local_rank) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &task->local_world_size) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_JOB_NNODES, &task->node_count) == ESPANK_SUCCESS;
}

static void set_number(struct step_context *step, spank_t spank, const char *name, uint32_t number)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", number);
	context_set_env(step, spank, name, text);
}

/* Sets the address of the step's first node, which has rank 0. On one node a name that may not resolve is not needed. */
static void set_address(struct step_context *step, spank_t spank, uint32_t node_count)
{
	char nodes[8192], *first;

	if (node_count < 2) {
		context_set_env(step, spank, "MASTER_ADDR", "127.0.0.1");
		return;
	}
	if (spank_getenv(spank, "SLURM_STEP_NODELIST", nodes, sizeof(nodes)) != ESPANK_SUCCESS) {
		context_refuse(
			step,
			"--vgpu-torch needs the step's list of nodes, and SLURM_STEP_NODELIST is not set "
			"or too long. Set MASTER_ADDR to the name of the first node");
		return;
	}
	__auto_type list = slurm_hostlist_create(nodes);
	first = list ? slurm_hostlist_shift(list) : NULL;
	context_set_env(step, spank, "MASTER_ADDR", first);
	free(first);
	if (list)
		slurm_hostlist_destroy(list);
}

void torch_start_task(struct step_context *step, spank_t spank)
{
	struct torch_task task;
	char devices[2048], set[2];

	if (!read_task(spank, &task)) {
		context_refuse(step,
			       "Slurm did not tell --vgpu-torch this task's number. Leave that option out");
		return;
	}
	set_number(step, spank, "RANK", task.rank);
	set_number(step, spank, "WORLD_SIZE", task.world_size);
	set_number(step, spank, "LOCAL_RANK", task.local_rank);
	set_number(step, spank, "LOCAL_WORLD_SIZE", task.local_world_size);
	if (spank_getenv(spank, "MASTER_PORT", set, sizeof(set)) == ESPANK_ENV_NOEXIST)
		set_number(step, spank, "MASTER_PORT", ranks_port(step->job_id, step->step_id));
	if (spank_getenv(spank, "MASTER_ADDR", set, sizeof(set)) == ESPANK_ENV_NOEXIST)
		set_address(step, spank, task.node_count);
	if (task.rank == 0 &&
	    spank_getenv(spank, "CUDA_VISIBLE_DEVICES", devices, sizeof(devices)) == ESPANK_SUCCESS &&
	    ranks_share_gpus(devices, task.local_world_size))
		slurm_spank_log(
			"hami_hpc: the %u tasks on a node share fewer GPUs (%s). NCCL refuses several ranks on "
			"one GPU: use the backend gloo, or ask for a slice for each, --gres=vgpu:%u",
			task.local_world_size, devices, task.local_world_size);
}
