/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated kernel adds to the resource manager's interface (rm_abi.h). Programs make the requests
 * that they make to NVIDIA's driver, in its layouts, so that an interposer sees what it sees on a GPU. A request
 * for a client carries something of the simulation's own in the first word of its parameters: the index of the
 * process's slot in the simulation's state; without parameters the kernel takes one. One for a
 * group carries, likewise, 1 and the slot of the context's line; 0: the process's own.
 */
#ifndef SIM_RM_H
#define SIM_RM_H
#include "../../include/rm_abi.h"

/* A control on a subdevice: compute groups of this process on the GPU, their channels and timeslices. */
#define RM_SIM_CHANNELS 0x20809901u
struct rm_sim_channels {
	uint32_t channels, disabled, groups, least_timeslice_us, most_timeslice_us;
};

/*
 * A control on an object of device memory: it is now the shared allocation with this id (u64) of the state, which
 * is charged there, and which this process leaves with the object.
 */
#define RM_SIM_SHARE 0x00409901u

/*
 * The resource manager's own count of GPUs is not that of the machine: it goes the other way, so that nobody relies
 * on their order. Converts either number into the other.
 */
static inline uint32_t sim_rm_instance(uint32_t gpu_count, uint32_t gpu)
{
	return gpu < gpu_count ? gpu_count - 1 - gpu : UINT32_MAX;
}

/* Handles that libcuda chooses for memory count up from the first; clients' from the second. */
#define RM_MEMORY_HANDLES 0x6d000000u
#define RM_CLIENT_HANDLES 0xc1d00000u

#endif
