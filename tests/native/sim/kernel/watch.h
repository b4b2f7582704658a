/* SPDX-License-Identifier: Apache-2.0 */
/* The program stands where an interposer stands: it sees what libcuda asks of the kernel, and asks itself. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H
#include "../../../../native/sim/core/sim_rm.h"
#include "../check.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>

struct seen {
	uint32_t client, parent, handle, class_id;
	int fd;
};

static struct {
	struct seen object[512];
	int objects, frees, timeslices;
	uint32_t compute_group, freed;
	uint64_t timeslice_us;
} watch;

/* Told of each request for memory and of its mappings (swap.h). */
static void (*watch_memory)(int fd, unsigned long request, const void *argument);

static int forward(int fd, unsigned long request, void *argument)
{
	static int (*next)(int, unsigned long, ...);
	if (!next)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, argument);
}

/* Memory comes and goes with whatever the program does; most tests are about the rest. */
static bool is_memory(unsigned long request, const void *argument)
{
	if (_IOC_TYPE(request) != 'F')
		return true;
	if (_IOC_NR(request) == RM_NR_ALLOC)
		return ((const struct rm_alloc *)argument)->class_id == RM_CLASS_DEVICE_MEMORY;
	return _IOC_NR(request) == RM_NR_FREE &&
	       ((const struct rm_free *)argument)->object >= RM_MEMORY_HANDLES &&
	       ((const struct rm_free *)argument)->object < RM_CLIENT_HANDLES;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	int rc = forward(fd, request, argument);
	if (rc || is_memory(request, argument)) {
		if (!rc && watch_memory)
			watch_memory(fd, request, argument);
		return rc;
	}
	if (_IOC_NR(request) == RM_NR_ALLOC) {
		const struct rm_alloc *a = argument;
		CHECK(_IOC_SIZE(request) == 48 && a->status == 0 && watch.objects < 512);
		watch.object[watch.objects++] =
			(struct seen){a->client, a->parent, a->object, a->class_id, fd};
	} else if (_IOC_NR(request) == RM_NR_FREE) {
		watch.frees++;
		watch.freed = ((const struct rm_free *)argument)->object;
	} else if (((const struct rm_control *)argument)->command == RM_GROUP_SET_TIMESLICE) {
		const struct rm_control *c = argument;
		watch.timeslices++;
		watch.compute_group = c->object;
		memcpy(&watch.timeslice_us, (const void *)(uintptr_t)c->params, sizeof watch.timeslice_us);
	}
	return rc;
}

static inline const struct seen *subdevice(void)
{
	for (int i = 0; i < watch.objects; i++)
		if (watch.object[i].class_id == RM_CLASS_SUBDEVICE)
			return &watch.object[i];
	CHECK(!"a subdevice was seen");
	return NULL;
}

/* The status of a control; the call itself must succeed. */
static inline uint32_t control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
			       uint32_t size)
{
	struct rm_control c = {.client = client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	CHECK(forward(fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c) == 0);
	return c.status;
}

/* The process's compute channels, at most `most` of them. */
static inline struct rm_disable_channels compute_channels(bool disable, uint32_t most)
{
	struct rm_disable_channels p = {.disable = disable};
	for (int i = 0; i < watch.objects && p.count < most; i++)
		if (watch.object[i].parent == watch.compute_group) {
			p.clients[p.count] = watch.object[i].client;
			p.channels[p.count++] = watch.object[i].handle;
		}
	return p;
}

static inline uint32_t set_disabled_some(bool disable, uint32_t most)
{
	struct rm_disable_channels p = compute_channels(disable, most);
	const struct seen *s = subdevice();
	return control(s->fd, s->client, s->handle, RM_DISABLE_CHANNELS, &p, sizeof p);
}

static inline uint32_t set_disabled(bool disable)
{
	return set_disabled_some(disable, 64);
}

static inline uint32_t set_timeslice(uint64_t us)
{
	const struct seen *s = subdevice();
	return control(s->fd, s->client, watch.compute_group, RM_GROUP_SET_TIMESLICE, &us, sizeof us);
}
#endif
