/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that never load libcuda: they ask the resource manager themselves, on the simulated
 * /dev/nvidiactl, as Vulkan's and OpenGL's libraries do on a real one.
 */
#ifndef RM_CLIENT_H
#define RM_CLIENT_H
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "../../../native/sim/core/sim_rm.h"
#include "../interposer/check.h"

static struct {
	int fd;
	uint32_t client, device, subdevice, handles;
} rm;

static inline uint32_t ask(unsigned long request, void *argument, const uint32_t *status)
{
	CHECK(ioctl(rm.fd, request, argument) == 0);
	return *status;
}

/* Any request inside of the form that carries others. */
static inline uint32_t ask_inside(unsigned long request, void *argument, const uint32_t *status)
{
	struct rm_transfer t = {.number = _IOC_NR(request),
				.size = _IOC_SIZE(request),
				.argument = (uint64_t)(uintptr_t)argument};
	return ask(RM_REQUEST(RM_NR_TRANSFER, struct rm_transfer), &t, status);
}

/* RM_ALLOC; the object's handle, of its own choice when 0, or 0 when it was refused. */
static inline uint32_t make(uint32_t parent, uint32_t handle, uint32_t class_id, void *params, uint32_t size)
{
	struct rm_alloc a = {.client = rm.client,
			     .parent = parent,
			     .object = handle,
			     .class_id = class_id,
			     .params = (uint64_t)(uintptr_t)params,
			     .size = size};
	return ask(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status) ? 0 : a.object;
}

static inline uint32_t control(uint32_t object, uint32_t command, void *params, uint32_t size)
{
	struct rm_control c = {.client = rm.client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	return ask(RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c, &c.status);
}

static inline uint32_t unmake(uint32_t object)
{
	struct rm_free f = {.client = rm.client, .object = object};
	return ask(RM_REQUEST(RM_NR_FREE, struct rm_free), &f, &f.status);
}

static inline uint32_t make_group(uint32_t engine)
{
	struct rm_group p = {.engine = engine};
	return make(rm.device, 0, RM_CLASS_GROUP, &p, sizeof p);
}

static inline void make_device(void)
{
	uint32_t gpu = 0;
	CHECK((rm.device = make(rm.client, 0, RM_CLASS_DEVICE, &gpu, sizeof gpu)));
	CHECK((rm.subdevice = make(rm.device, 0, RM_CLASS_SUBDEVICE, NULL, 0)));
}

/* A client of its own, with a device and a subdevice. */
static inline void open_client(void)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/nvidiactl", getenv("HAMI_SIM"));
	CHECK((rm.fd = open(path, O_RDWR | O_CLOEXEC)) >= 0);
	rm.client = 0;
	CHECK((rm.client = make(0, 0, RM_CLASS_CLIENT, NULL, 0)));
	make_device();
}

#endif
