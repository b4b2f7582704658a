/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's channels: what libcuda allocates from the kernel when a context is made. Four channel groups, of
 * which one is for compute: only that one gets a timeslice, and eight channels. Where no simulated kernel answers
 * contexts do without.
 */
#include "memory.h"
#include "rm.h"

#include <stdlib.h>

enum {
	GROUPS = 4,
	COMPUTE_GROUP = 2, /* neither the first nor the last */
	COMPUTE_CHANNELS = 8,
	COPY_CHANNELS = 2,
};

struct rm_context {
	uint32_t device; /* handle; everything of the context is below it */
};

static bool make_group(uint32_t device, const struct CUctx_st *c, bool compute)
{
	uint32_t group, channel, gpu = c->device;
	uint64_t timeslice_us = sim.view.machine.gpu[gpu].timeslice_us;
	if (!rm_allocate_group(device, &group, compute ? RM_ENGINE_COMPUTE : RM_ENGINE_COPY, c->line))
		return false;
	if (compute)
		rm_ask(group, RM_GROUP_SET_TIMESLICE, &timeslice_us, sizeof timeslice_us);
	for (int i = 0; i < (compute ? COMPUTE_CHANNELS : COPY_CHANNELS); i++)
		if (!rm_allocate(group, &channel, sim.view.machine.gpu[gpu].channel_class, 0))
			return false;
	uint8_t schedule[3] = {1}; /* NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS: enable */
	rm_ask(group, RM_GROUP_SCHEDULE, schedule, sizeof schedule);
	return true;
}

static CUresult open_channels(struct CUctx_st *c)
{
	if (!rm_open())
		return CUDA_SUCCESS;
	struct rm_context *mine = calloc(1, sizeof *mine);
	if (!mine)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->rm = mine;
	uint32_t subdevice;
	bool allocated = rm_allocate_device(c->device, &mine->device) &&
			 rm_allocate(mine->device, &subdevice, RM_CLASS_SUBDEVICE, 0);
	for (int i = 0; allocated && i < GROUPS; i++)
		allocated = make_group(mine->device, c, i == COMPUTE_GROUP);
	if (allocated)
		return CUDA_SUCCESS;
	sim_channels_close(c);
	return CUDA_ERROR_UNKNOWN;
}

/* With sim.lock held. */
CUresult sim_channels_open(struct CUctx_st *c)
{
	pthread_mutex_lock(&rm.lock);
	CUresult result = open_channels(c);
	pthread_mutex_unlock(&rm.lock);
	return result;
}

void sim_channels_close(struct CUctx_st *c)
{
	if (!c->rm)
		return;
	rm_unmake(rm.handle, c->rm->device);
	free(c->rm);
	c->rm = NULL;
}
