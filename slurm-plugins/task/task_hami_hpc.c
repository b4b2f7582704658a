// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * task/hami_hpc: when Slurm suspends a job (scontrol suspend, PreemptMode=SUSPEND, GANG), the device memory of its programs
 * leaves the GPU first, and comes back when they go on (docs/adr/078). Of all that Slurm tells a node, this alone comes
 * before the programs are stopped, and says so to root: slurmd asks its task plugins, and waits for them. Slurm 24.11 does
 * so no more: there the plugin is never called.
 *
 *   TaskPlugin=task/affinity,task/cgroup,task/hami_hpc
 *
 * Root's program `suspend` does the work (docs/moving-memory.md). It is in the directory that the plugin was built for, or in
 * slurmd's HAMI_HPC_STAGES; the settings are those of its installation, or slurmd's HAMI_HPC_CONFIG. What slurmd starts
 * meanwhile waits: a job that takes the GPU's place finds the memory free.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"
#include "slurm/spank.h" /* slurm_error, slurm_info */

#include "program.h"

/* The program gives up before: it knows how much there is to move. */
#define SECONDS 300

const char plugin_name[] = "hami_hpc: device memory of suspended jobs";
const char plugin_type[] = "task/hami_hpc";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int init(void)
{
	return SLURM_SUCCESS;
}

int fini(void)
{
	return SLURM_SUCCESS;
}

/* Returns SLURM_SUCCESS always: Slurm stops or continues the job whatever becomes of its memory. */
static int run(const char *direction, uint32_t job_id)
{
	const char *stages = getenv("HAMI_HPC_STAGES"), *config = getenv("HAMI_HPC_CONFIG");
	char path[PATH_MAX], job[16], line[1024];
	const char *const argv[] = {path, direction, "--job", job, config ? "--config" : NULL, config, NULL};

	snprintf(path, sizeof(path), "%s/suspend", stages ? stages : DEFAULT_STAGES);
	snprintf(job, sizeof(job), "%u", job_id);
	if (program_run(argv, SECONDS, line, sizeof(line)) < 0)
		slurm_error("hami_hpc: %s", line);
	else if (*line)
		slurm_info("hami_hpc: %s", line);
	return SLURM_SUCCESS;
}

/* In slurmd, before a job's programs are stopped. */
int task_p_slurmd_suspend_job(uint32_t job_id)
{
	return run("out", job_id);
}

/* In slurmd, after they were continued. */
int task_p_slurmd_resume_job(uint32_t job_id)
{
	return run("in", job_id);
}

/*
 * What else Slurm looks up, in any release (22.05 to 26.05, src/interfaces/task.h): the plugin does nothing of it, whatever
 * the arguments are.
 */
#define NOTHING(name)                                                                                        \
	int name(void)                                                                                       \
	{                                                                                                    \
		return SLURM_SUCCESS;                                                                        \
	}
NOTHING(task_p_slurmd_batch_request)
NOTHING(task_p_slurmd_launch_request)
NOTHING(task_p_pre_setuid)
NOTHING(task_p_pre_set_affinity)
NOTHING(task_p_set_affinity)
NOTHING(task_p_post_set_affinity)
NOTHING(task_p_pre_launch)
NOTHING(task_p_pre_launch_priv)
NOTHING(task_p_post_term)
NOTHING(task_p_post_step)
NOTHING(task_p_add_pid)
NOTHING(task_p_update_mem_limit)
