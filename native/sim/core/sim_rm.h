/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated kernel adds to the resource manager's interface (rm_abi.h). Programs make the requests
 * that they make to NVIDIA's driver, in its layouts, so that an interposer sees what it sees on a GPU. Two
 * requests to allocate carry something of the simulation's own in the first word of their parameters:
 *
 *	client    index of the process's slot in the simulation's state; without parameters the kernel
 *	          takes one
 *	device    index of the machine's GPU
 */
#ifndef SIM_RM_H
#define SIM_RM_H
#include "../../include/rm_abi.h"

/* A control on a subdevice: compute groups of this process on the GPU, their channels and timeslices. */
#define RM_SIM_CHANNELS 0x20809901u
struct rm_sim_channels {
	uint32_t channels, disabled, groups, least_timeslice_us, most_timeslice_us;
};

/* Handles of memory that libcuda chooses: the kernel keeps no record of those, the state has the sums. */
#define RM_MEMORY_HANDLES 0x6d000000u
#define RM_CLIENT_HANDLES 0xc1d00000u

#endif
