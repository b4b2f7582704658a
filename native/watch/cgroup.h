/* SPDX-License-Identifier: Apache-2.0 */
/* The cgroup by which Slurm signals and freezes the processes of a step. */
#ifndef HAMI_WATCH_CGROUP_H
#define HAMI_WATCH_CGROUP_H

#include <sys/types.h>

/*
 * Puts this process into the cgroup of another, in the hierarchies that proctrack/cgroup freezes: version 2, or freezer of
 * version 1. Where both are in the same cgroup there already (proctrack/linuxproc), it changes nothing. Returns 0, or -1
 * with errno.
 */
int cgroup_join(pid_t other);

/*
 * Takes this process out of the cgroups that Slurm made for a job, in which slurmstepd stands too: Slurm removes them when
 * the job ends, and with version 2 counts and kills what is in them. Changes nothing where it cannot.
 */
void cgroup_leave_job(void);

#endif
