// SPDX-License-Identifier: GPL-2.0-or-later
/* Which job's extern step a process is in, by its cgroup, which only root can choose. Does not use Slurm or PAM. */
#ifndef HAMI_PAM_CGROUP_H
#define HAMI_PAM_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_SLUID_SIZE = 15 }; /* Slurm's own size: "s", 13 characters, the final NUL */

/* The job of an extern step: its id, or since 26.05 with cgroup version 2 its SLUID, with the id 0. */
struct cgroup_job {
	uint32_t id;
	char sluid[CGROUP_SLUID_SIZE];
};

/* Returns whether it is a job's at all. */
bool cgroup_is_job(const struct cgroup_job *job);

/*
 * Finds the job whose extern step a line of /proc/PID/cgroup names. Returns whether there is one. Modifies the line.
 *
 *   v1: 6:freezer:/slurm/uid_1000/job_7/step_extern/...
 *   v2: 0::/system.slice/slurmstepd.scope/job_7/step_extern/...
 *       0::/system.slice/slurmstepd.scope/s0123456789ABC/step_extern/...   without CgroupJobIdPaths
 *
 * A NodeName can be part of both ("slurm_NODE", "NODE_slurmstepd.scope"), and a container's own path can come before.
 * Only the first match counts, and none below user.slice: there systemd lets users make cgroups of any name.
 */
bool cgroup_job_of_line(char *line, struct cgroup_job *job);

/*
 * Reads a file as /proc/self/cgroup into *job; all zeros for a process of no job's extern step. Returns 0 or -errno;
 * -EXDEV if its hierarchies name several jobs.
 */
int cgroup_read_job(const char *path, struct cgroup_job *job);

#endif
