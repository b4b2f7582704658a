/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's channels: what libcuda allocates from the kernel when a context is made, through libc's
 * `ioctl`, so that an interposer sees it. Four channel groups, of which one is for compute: only that one
 * gets a timeslice, and eight channels. Where no simulated kernel answers (libhami-sim-kernel.so is not
 * preloaded) contexts do without.
 */
#include "../core/sim_rm.h"
#include "memory.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* What was charged to the GPU, by its size: frees name the size alone. */
struct charged {
	struct charged *next;
	uint64_t bytes;
	uint32_t handle;
};
static struct {
	pthread_mutex_t lock; /* of all static state here; taken inside sim.lock and alone */
	struct charged *by_size[256];
	uint32_t device[SIM_MAX_GPUS]; /* handle of the device that memory is below */
	uint32_t next_handle;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool allocate(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter)
{
	uint32_t parameters[8] = {parameter};
	if (class_id == RM_CLASS_GROUP) {
		parameters[0] = 0;
		parameters[offsetof(struct rm_group, engine) / sizeof *parameters] = parameter;
	}
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

static struct charged **bucket(uint64_t bytes)
{
	return &memory.by_size[bytes / FRAME_BYTES % (sizeof memory.by_size / sizeof *memory.by_size)];
}

static void free_memory(uint32_t gpu, uint32_t handle)
{
	struct rm_free f = {.client = rm.client, .parent = memory.device[gpu], .object = handle};
	ioctl(rm.fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f);
}

/* memory.lock is held. */
static uint32_t ask_for_memory(uint32_t gpu, uint64_t bytes, uint32_t handle)
{
	if (!memory.device[gpu] && !allocate_new(rm.client, &memory.device[gpu], RM_CLASS_DEVICE, gpu))
		return RM_INSUFFICIENT_RESOURCES;
	struct rm_memory p = {.size = bytes};
	struct rm_alloc a = {.client = rm.client,
			     .parent = memory.device[gpu],
			     .object = handle,
			     .class_id = RM_CLASS_DEVICE_MEMORY,
			     .params = (uint64_t)(uintptr_t)&p,
			     .size = sizeof p};
	return ioctl(rm.fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) ? RM_NOT_SUPPORTED : a.status;
}

CUresult sim_rm_memory_take(uint32_t gpu, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;
	struct charged *h;
	pthread_mutex_lock(&memory.lock);
	if (!open_client())
		goto out;
	h = malloc(sizeof *h);
	if (!h || ask_for_memory(gpu, bytes, RM_MEMORY_HANDLES + memory.next_handle + 1) != RM_OK) {
		free(h);
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	*h = (struct charged){
		.next = *bucket(bytes), .bytes = bytes, .handle = RM_MEMORY_HANDLES + ++memory.next_handle};
	*bucket(bytes) = h;
out:
	pthread_mutex_unlock(&memory.lock);
	return result;
}

void sim_rm_memory_give(uint32_t gpu, uint64_t bytes)
{
	pthread_mutex_lock(&memory.lock);
	for (struct charged **at = bucket(bytes); *at; at = &(*at)->next)
		if ((*at)->bytes == bytes) {
			struct charged *h = *at;
			*at = h->next;
			free_memory(gpu, h->handle);
			free(h);
			break;
		}
	pthread_mutex_unlock(&memory.lock);
}

static CUresult open_channels(struct CUctx_st *c)
{
	if (!open_client())
		return CUDA_SUCCESS;
	struct rm_context *mine = calloc(1, sizeof *mine);
	if (!mine)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->rm = mine;
	uint32_t subdevice;
	bool allocated = allocate_new(rm.client, &mine->device, RM_CLASS_DEVICE, c->device) &&
			 allocate_new(mine->device, &subdevice, RM_CLASS_SUBDEVICE, 0);
	for (int i = 0; allocated && i < GROUPS; i++)
		allocated = make_group(mine->device, c->device, i == COMPUTE_GROUP);
	if (allocated)
		return CUDA_SUCCESS;
	sim_channels_close(c);
	return CUDA_ERROR_UNKNOWN;
}

/* With sim.lock held. */
CUresult sim_channels_open(struct CUctx_st *c)
{
	pthread_mutex_lock(&memory.lock);
	CUresult result = open_channels(c);
	pthread_mutex_unlock(&memory.lock);
	return result;
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
	pthread_mutex_init(&memory.lock, NULL);
	memset(memory.by_size, 0, sizeof memory.by_size); /* the parent's */
	memset(memory.device, 0, sizeof memory.device);
}
