// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * preload=ldso: each task has a mount namespace in which ld.so and the interposer find their files at fixed
 * paths, so that no change of the environment removes the limits.
 *
 *   /etc/ld.so.preload               <- jobs/JOB/ld.so.preload: the host's list with the interposer in front
 *   /run/hami-hpc/self/              <- jobs/JOB/ and what is mounted below it: job.limits and the usage file
 *   /run/hami-hpc/self/step.limits   <- jobs/JOB/step-N.limits
 *   /run/hami-hpc/self/step.I.limits <- jobs/JOB/step-N.I.limits, of each later slice I
 *
 * These paths are compiled into ld.so and the interposer. jobs/ is below run_dir, which the site can set.
 */
#ifndef HAMI_SPANK_LDSO_H
#define HAMI_SPANK_LDSO_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

/*
 * Makes the mount points and jobs/JOB/ld.so.preload, and the files for containers (container.h); dir is the job's
 * directory. Called as root in slurmstepd. Returns 0, or -1 with one line in error[size].
 */
int ldso_prepare(int dir, const struct options *opt, uint32_t slice_count, char *error, size_t size);

/*
 * Moves the task's process into a new mount namespace with these mounts. Called as root. Returns 0, or -1
 * with one line in error[size].
 */
int ldso_enter(const struct options *opt, uint32_t job_id, uint32_t step_id, uint32_t slice_count,
	       char *error, size_t size);

#endif
