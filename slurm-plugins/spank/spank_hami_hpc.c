// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which callback does what, and why there; nothing else is in this file. All of it is for slurmstepd: in srun, sbatch,
 * salloc, slurmd and the job scripts' context the plugin does nothing.
 *
 *   init_post_opt         root, before any task: decide, write the record, set the environment. The user's environment
 *                         is loaded and gres has overwritten its part of it (slurmstepd.c, _step_setup); what is set
 *                         here reaches every task, the task prologs, and other plugins' containers.
 *   user_init             first callback whose messages reach the job's own standard error: refuse here.
 *   task_init_privileged  root, in the task's process: mount namespace (preload=ldso).
 *   task_init             user, in the task's process, after gres' last change of the environment.
 *   exit                  root, after the last task: remove the record.
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

int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
	(void)spank;
	(void)argc;
	(void)argv;
	return step_refuse();
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	(void)spank;
	(void)argc;
	(void)argv;
	return step_enter_task();
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return step_task_environment(spank);
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
