// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * preload=ldso: in a mount namespace of each task, ld.so and the interposer find all they need at fixed
 * places, so that no change of the environment takes the fence away.
 *
 *   /etc/ld.so.preload               <- jobs/JOB/ld.so.preload: the host's list with the interposer in front
 *   /run/hami-hpc/self/              <- jobs/JOB/ and what is mounted below it: job.limits and the usage file
 *   /run/hami-hpc/self/step.limits   <- jobs/JOB/step-N.limits
 *
 * These places are compiled into ld.so and the interposer; jobs/ is below run_dir, wherever that is.
 */
#ifndef HAMI_SPANK_LDSO_H
#define HAMI_SPANK_LDSO_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

/*
 * As root in slurmstepd: makes the mount points and jobs/JOB/ld.so.preload; dir is the job's directory.
 * Returns 0, or -1 with one line in error[size].
 */
int ldso_prepare(int dir, const struct options *opt, char *error, size_t size);

/*
 * As root in the task's process: enters a new mount namespace. Returns 0, or -1 with one line in error[size].
 */
int ldso_enter(const struct options *opt, uint32_t job_id, uint32_t step_id, char *error, size_t size);

#endif
