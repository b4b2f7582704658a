/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of GPU memory by cgroup, as a driver from r615 on has them (NVIDIA's "MPS v3 Memory Partitioning", backend
 * misc): set for a cgroup's directory, they hold for the processes in it and below it, up to the next cgroup with a
 * limit of its own, and go with the cgroup. No hardware has been compared with it.
 *
 * A machine has them if it has the directory `memory-limits`, with a file GPU-INODE for each limit: "SOFT HARD". A
 * process's cgroup is the directory that the file cgroups/PID of the machine names, else that of /proc/PID/cgroup.
 */
#ifndef SIM_MEMORY_LIMITS_H
#define SIM_MEMORY_LIMITS_H
#include "state.h"

#define SIM_LIMIT_MAX UINT64_MAX

struct sim_limit {
	uint64_t soft, hard, used;
};

/* Whether this machine's driver has limits by cgroup. */
bool sim_limits_exist(const struct sim_view *view);

/* Sets the limit of a cgroup's directory; 0 and SIM_LIMIT_MAX remove it. 0, -ENOENT, -EINVAL, -errno. */
int sim_limit_set(const struct sim_view *view, uint32_t gpu, const char *cgroup, uint64_t soft,
		  uint64_t hard);

/* The limit of a cgroup, or of the nearest one above it that has one, and what its processes hold. With the mutex held. */
int sim_limit_get(const struct sim_view *view, uint32_t gpu, const char *cgroup, struct sim_limit *out);

/* Whether this process's cgroup leaves room for bytes more: 0 or -ENOMEM. With the mutex held. */
int sim_limit_room(struct sim_view *view, uint32_t gpu, uint64_t bytes);
#endif
