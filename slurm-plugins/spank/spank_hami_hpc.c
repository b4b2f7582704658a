// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Connects SPANK's callbacks to step.c. The plugin works only in slurmstepd; in srun, sbatch and salloc it knows
 * the options --vgpu-bind and --vgpu-torch, and in srun --vgpu-resize, which Slurm passes to slurmstepd, and in slurmd
 * and the job scripts' context it does nothing.
 *
 *   init                   registers the options.
 *   init_post_opt          root, before any task: decides, writes the record, sets the environment. By then
 *                          the user's environment is loaded and the gres plugins have set their variables
 *                          (slurmstepd.c, _step_setup). What is set here reaches every task, the task
 *                          prologs, and other plugins' containers.
 *   task_init_privileged   root, in the task's process: mount namespace (preload=ldso).
 *   task_init              user, in the task's process: refuses the step. This is the first callback in which
 *                          a message reaches the user on any standard error, also a terminal, and in which a
 *                          refused job ends as FAILED. (If init or user_init fails, a batch job ends as
 *                          COMPLETED with exit code 0, the node is drained, and srun returns 0: tried on
 *                          22.05.8.) No code of the user runs before it.
 *   task_post_fork         root, in slurmstepd, when Slurm's tracking knows the task, which has not begun.
 *   task_exit              root, in slurmstepd, for each task that ended.
 *   exit                   root, after the last task: removes the record.
 */
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "resize.h"
#include "step.h"

SPANK_PLUGIN(hami_hpc, 1)

/* Called where the user gave the option: in the user's command, and in slurmstepd. */
static int take_bind(int value, const char *text, int is_remote)
{
	char error[512];
	int mode = bind_parse(text, error, sizeof(error));

	(void)value;
	if (mode < 0) {
		slurm_error("hami_hpc: %s", error);
		return -1;
	}
	if (is_remote)
		step_set_bind((enum bind_mode)mode);
	return 0;
}

static int take_torch(int value, const char *text, int is_remote)
{
	(void)value;
	(void)text;
	if (is_remote)
		step_set_torch();
	return 0;
}

static int take_size(int value, const char *text, int is_remote)
{
	char error[512];

	(void)value;
	if (resize_check(text, error, sizeof(error)) < 0) {
		slurm_error("hami_hpc: %s", error);
		return -1;
	}
	if (is_remote)
		step_set_size(strdup(text)); /* Slurm's own text is freed before the step begins */
	return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	static struct spank_option resize = {
		.name = "vgpu-resize",
		.arginfo = "mem=SIZE,cores=PERCENT",
		.usage =
			"gives the slices of a running job another size, within its shards (hami-hpc resize)",
		.has_arg = 1,
		.cb = take_size,
	};
	static struct spank_option options[] = {
		{
			.name = "vgpu-bind",
			.arginfo = "none|single",
			.usage =
				"which GPUs of its step a task sees: all (none), or one by its number on the node (single)",
			.has_arg = 1,
			.cb = take_bind,
		},
		{
			.name = "vgpu-torch",
			.usage =
				"sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for torch.distributed",
			.cb = take_torch,
		},
	};
	spank_context_t context = spank_context();

	(void)argc;
	(void)argv;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			return -1;
	/* Not in sbatch and salloc, whose jobs have no slice yet. */
	if (context != S_CTX_ALLOCATOR && spank_option_register(spank, &resize) != ESPANK_SUCCESS)
		return -1;
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	if (spank_context() == S_CTX_REMOTE)
		step_begin(spank, argc, argv);
	return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	(void)spank;
	(void)argc;
	(void)argv;
	step_enter_task();
	return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	step_start_task(spank);
	return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	step_task_forked(spank);
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	step_task_ended(spank);
	return 0;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
	(void)spank;
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		step_end();
	return 0;
}
