// SPDX-License-Identifier: GPL-2.0-or-later
/* Which job's extern step a process is in, by its cgroup, which only root can choose. Does not use Slurm or PAM. */
#ifndef HAMI_PAM_CGROUP_H
#define HAMI_PAM_CGROUP_H

#include <stdint.h>

/*
 * Returns the job whose extern step a line of /proc/PID/cgroup names; 0 for none. Modifies the line.
 *
 *   v1: 6:freezer:/slurm/uid_1000/job_7/step_extern/...
 *   v2: 0::/system.slice/slurmstepd.scope/job_7/step_extern/...
 *
 * A NodeName can be part of both ("slurm_NODE", "NODE_slurmstepd.scope"), and a container's own path can come before.
 * Only the first match counts, and none below user.slice: there systemd lets users make cgroups of any name.
 */
uint32_t cgroup_job_of_line(char *line);

/*
 * Reads a file as /proc/self/cgroup into *job; 0 for a process of no job's extern step. Returns 0 or -errno; -EXDEV if
 * its hierarchies name several jobs.
 */
int cgroup_read_job(const char *path, uint32_t *job);

#endif
