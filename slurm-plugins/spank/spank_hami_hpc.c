// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Connects SPANK's callbacks to step.c. The plugin works only in slurmstepd; in srun, sbatch, salloc, slurmd
 * and the job scripts' context it does nothing.
 *
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
 *   exit                   root, after the last task: removes the record.
 */
#include <slurm/spank.h>

#include "step.h"

SPANK_PLUGIN(hami_hpc, 1)

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

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
	(void)spank;
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		step_end();
	return 0;
}
