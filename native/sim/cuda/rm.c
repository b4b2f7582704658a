/* SPDX-License-Identifier: Apache-2.0 */
#include "rm.h"

#include "sim_cuda.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

struct rm_client rm = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .uvm_fd = -1};

static bool allocate(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter, uint32_t line)
{
	uint32_t parameters[8] = {parameter};
	if (class_id == RM_CLASS_GROUP) {
		parameters[0] = line;
		parameters[offsetof(struct rm_group, engine) / sizeof *parameters] = parameter;
	}
	struct rm_alloc a = {.client = rm.handle,
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

bool rm_allocate(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter)
{
	*object = 0x5c000000u + ++rm.objects;
	return allocate(parent, object, class_id, parameter, 0);
}

bool rm_allocate_group(uint32_t device, uint32_t *object, uint32_t engine, uint32_t line)
{
	*object = 0x5c000000u + ++rm.objects;
	return allocate(device, object, RM_CLASS_GROUP, engine, line + 1);
}

bool rm_allocate_device(uint32_t gpu, uint32_t *object)
{
	uint32_t instance = sim_rm_instance(sim.view.machine.gpu_count, gpu);
	return rm_allocate(rm.handle, object, RM_CLASS_DEVICE, instance);
}

void rm_unmake(uint32_t parent, uint32_t object)
{
	struct rm_free f = {.client = rm.handle, .parent = parent, .object = object};
	ioctl(rm.fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f);
}

uint32_t rm_ask(uint32_t object, uint32_t command, void *params, uint32_t size)
{
	struct rm_control c = {.client = rm.handle,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	return ioctl(rm.fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c) ? RM_NOT_SUPPORTED : c.status;
}

static int open_device_file(const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", sim.view.dir, name);
	return open(path, O_RDWR | O_CLOEXEC);
}

bool rm_open(void)
{
	if (rm.handle || rm.absent)
		return !rm.absent;
	rm.fd = open_device_file("nvidiactl");
	rm.uvm_fd = open_device_file("nvidia-uvm");
	rm.absent = rm.fd < 0 || rm.uvm_fd < 0 || !allocate(0, &rm.handle, RM_CLASS_CLIENT, sim.view.slot, 0);
	return !rm.absent;
}

void sim_rm_fork_child(void)
{
	if (rm.fd >= 0)
		close(rm.fd);
	if (rm.uvm_fd >= 0)
		close(rm.uvm_fd);
	rm = (struct rm_client){.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .uvm_fd = -1};
}
