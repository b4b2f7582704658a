/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's channels: what libcuda allocates from the kernel when a context is made, through libc's
 * `ioctl`, so that an interposer sees it. Four channel groups, of which one is for compute: only that one
 * gets a timeslice, and eight channels. Where no simulated kernel answers (libhami-sim-kernel.so is not
 * preloaded) contexts do without.
 */
#include "../core/rm_abi.h"
#include "sim_cuda.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	GROUPS = 4,
	COMPUTE_GROUP = 2, /* neither the first nor the last */
	COMPUTE_CHANNELS = 8,
	COPY_CHANNELS = 2,
};

struct rm_context {
	uint32_t device; /* handle; everything of the context is below it */
};

static struct {
	int fd;
	bool absent; /* nobody answers */
	uint32_t client, next_handle;
} rm = {.fd = -1};

static bool allocate(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter)
{
	uint32_t parameters[4] = {parameter};
	struct rm_alloc a = {.client = rm.client,
			     .parent = parent,
			     .object = *object,
			     .class_id = class_id,
			     .params = (uint64_t)(uintptr_t)parameters,
			     .size = sizeof parameters};
	if (ioctl(rm.fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) != 0 || a.status != RM_OK)
		return false;
	*object = a.object;
	return true;
}

static bool allocate_new(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter)
{
	*object = 0x5c000000u + ++rm.next_handle;
	return allocate(parent, object, class_id, parameter);
}

static bool open_client(void)
{
	char path[PATH_MAX];
	if (rm.client || rm.absent)
		return !rm.absent;
	snprintf(path, sizeof path, "%s/nvidiactl", sim.view.dir);
	rm.fd = open(path, O_RDWR | O_CLOEXEC);
	rm.absent = rm.fd < 0 || !allocate(0, &rm.client, RM_CLASS_CLIENT, sim.view.slot);
	return !rm.absent;
}

static bool make_group(uint32_t device, uint32_t gpu, bool compute)
{
	uint32_t group, channel;
	uint64_t timeslice_us = sim.view.machine.gpu[gpu].timeslice_us;
	if (!allocate_new(device, &group, RM_CLASS_GROUP, compute ? RM_ENGINE_COMPUTE : RM_ENGINE_COPY))
		return false;
	if (compute) {
		struct rm_control c = {.client = rm.client,
				       .object = group,
				       .command = RM_GROUP_SET_TIMESLICE,
				       .params = (uint64_t)(uintptr_t)&timeslice_us,
				       .size = sizeof timeslice_us};
		ioctl(rm.fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c);
	}
	for (int i = 0; i < (compute ? COMPUTE_CHANNELS : COPY_CHANNELS); i++)
		if (!allocate_new(group, &channel, sim.view.machine.gpu[gpu].channel_class, 0))
			return false;
	return true;
}

/* With sim.lock held. */
CUresult sim_channels_open(struct CUctx_st *c)
{
	if (!open_client())
		return CUDA_SUCCESS;
	struct rm_context *mine = calloc(1, sizeof *mine);
	if (!mine)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->rm = mine;
	uint32_t subdevice;
	bool made = allocate_new(rm.client, &mine->device, RM_CLASS_DEVICE, c->device) &&
		    allocate_new(mine->device, &subdevice, RM_CLASS_SUBDEVICE, 0);
	for (int i = 0; made && i < GROUPS; i++)
		made = make_group(mine->device, c->device, i == COMPUTE_GROUP);
	if (made)
		return CUDA_SUCCESS;
	sim_channels_close(c);
	return CUDA_ERROR_UNKNOWN;
}

void sim_channels_close(struct CUctx_st *c)
{
	if (!c->rm)
		return;
	struct rm_free f = {.client = rm.client, .parent = rm.client, .object = c->rm->device};
	ioctl(rm.fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f);
	free(c->rm);
	c->rm = NULL;
}

void sim_channels_fork_child(void)
{
	if (rm.fd >= 0)
		close(rm.fd);
	rm.fd = -1;
	rm.client = 0;
	rm.absent = false;
}
