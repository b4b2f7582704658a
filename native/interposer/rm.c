/* SPDX-License-Identifier: Apache-2.0 */
#include "rm.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "interposer.h"
#include "rm_abi.h"
#include "rm_forms.h"
#include "rm_objects.h"
#include "table.h"

typedef int ioctl_fn(int, unsigned long, ...);

static struct {
	_Atomic uint64_t timeslice_us; /* 0: libcuda's own */
	ioctl_fn *_Atomic real;
} rm;

static ioctl_fn *real_ioctl(void)
{
	if (!rm.real)
		rm.real = (ioctl_fn *)dlsym(RTLD_NEXT, "ioctl");
	return rm.real;
}

/* 0, -EPERM when the driver refuses, -ESTALE when client or descriptor are no longer there. */
static int control(const struct hami_target *to, uint32_t object, uint32_t command, void *params,
		   uint32_t size)
{
	struct rm_control c = {.client = to->client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	if (real_ioctl()(to->fd, _IOWR('F', RM_CONTROL, struct rm_control), &c))
		return errno == EBADF || errno == ENOTTY ? -ESTALE : -errno;
	return c.status == RM_STATUS_INVALID_CLIENT ? -ESTALE : c.status ? -EPERM : 0;
}

/* ----------------------------------------------------------------------- requests of the process */

static int refuse(const struct hami_rm_request *r)
{
	*r->status = RM_STATUS_NO_MEMORY;
	return 0; /* to libcuda the GPU is full */
}

/* For a request that was answered: the driver may have chosen the handle. */
static uint64_t key_of(const struct hami_rm_request *r)
{
	bool client = r->kind == HAMI_RM_MAKE && hami_objects_is_client(r->class_id);
	return hami_object_key(client ? *r->object : r->client, *r->object);
}

static void put_memory(struct hami_entry entry, const struct hami_rm_request *r)
{
	entry.key = key_of(r);
	entry.owner = hami_object_key(r->client, r->parent);
	if (!hami_table_put(entry))
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
}

static int watch_memory(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	if (hami_memory_charge(r->bytes))
		return refuse(r);
	hami_table_expect(hami_object_key(r->client, *r->object));
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		put_memory((struct hami_entry){.bytes = r->bytes}, r);
	} else {
		hami_memory_release(r->bytes);
		if (!rc && *r->status == RM_STATUS_NO_MEMORY)
			hami_memory_lacking(r->bytes);
	}
	errno = saved;
	return rc;
}

static int watch_object(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	if (hami_objects_is_work(r->class_id) && hami_is_secure()) {
		hami_refuse_secure();
		return refuse(r);
	}
	struct hami_object *object = hami_object_new();
	if (!object) {
		hami_log(0, "no memory to remember a channel by, which could then not be paused; it is "
			    "refused\n");
		return refuse(r);
	}
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status)
		hami_objects_add(object, fd, r->class_id, hami_object_key(r->client, r->parent), key_of(r),
				 r->engine);
	else
		hami_object_drop(object);
	errno = saved;
	return rc;
}

static int watch_unmake(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	uint64_t key = key_of(r);
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		struct hami_entry memory = hami_table_take(key);
		uint64_t bytes = memory.key ? memory.bytes : hami_objects_free(key);
		if (bytes)
			hami_memory_release(bytes);
	}
	errno = saved;
	return rc;
}

/* A second handle for memory, which stays charged until both are freed. Another process's is charged to that
 * one. */
static int watch_dup(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	const struct rm_dup *d = r->argument;
	struct hami_entry copy;
	int shared = hami_table_share(hami_object_key(d->client_from, d->object_from), &copy);
	if (shared == -ENOMEM) {
		hami_log(0, "no memory to remember an allocation's second handle by; it is refused\n");
		return refuse(r);
	}
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!shared && !rc && !*r->status)
		put_memory(copy, r);
	else if (!shared)
		hami_memory_release(hami_table_unshare(&copy));
	errno = saved;
	return rc;
}

static int watch_control(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	const struct rm_control *c = r->argument;
	bool timeslice = c->command == CTRL_SET_TIMESLICE && c->size == sizeof(uint64_t) && c->params;
	bool work = timeslice || c->command == CTRL_GROUP_SCHEDULE || c->command == CTRL_CHANNEL_SCHEDULE;
	uint64_t wanted = rm.timeslice_us;
	if (timeslice && wanted)
		memcpy((void *)(uintptr_t)c->params, &wanted, sizeof wanted);
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	/* libcuda sets a timeslice on its compute group and on no other. */
	if (work && !rc && !c->status && hami_objects_start(hami_object_key(c->client, c->object), timeslice))
		hami_compute_begin();
	errno = saved;
	return rc;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	if (_IOC_TYPE(request) != 'F' || !argument)
		return real_ioctl()(fd, request, argument);
	const struct hami_rm_request r = hami_rm_read(request, argument);
	switch (r.kind) {
	case HAMI_RM_MAKE:
		if (r.bytes)
			return watch_memory(fd, request, argument, &r);
		if (hami_objects_keep(r.class_id))
			return watch_object(fd, request, argument, &r);
		break;
	case HAMI_RM_UNMAKE:
		return watch_unmake(fd, request, argument, &r);
	case HAMI_RM_DUP:
		return watch_dup(fd, request, argument, &r);
	case HAMI_RM_CONTROL:
		return watch_control(fd, request, argument, &r);
	case HAMI_RM_OTHER:
		break;
	}
	return real_ioctl()(fd, request, argument);
}

/* ----------------------------------------------------------------------- requests of the keeper */

int hami_rm_groups(void)
{
	return hami_objects_started();
}

unsigned int hami_rm_groups_ever(void)
{
	return hami_objects_started_ever();
}

/* A client that has gone, as its descriptor was closed, is forgotten with all that it had. */
static int forget_if_stale(int rc, const struct hami_target *target)
{
	if (rc != -ESTALE)
		return rc;
	hami_memory_release(hami_objects_free(hami_object_key(target->client, target->client)));
	return 0;
}

int hami_rm_pause(bool paused)
{
	long count;
	int rc = 0;
	struct hami_target *targets = hami_objects_channels(&count);
	for (long i = 0; i < count;) {
		const struct hami_target *first = &targets[i];
		struct rm_disable_channels list = {.disable = paused};
		for (; i < count && list.count < MAX_PER_CONTROL && targets[i].fd == first->fd &&
		       targets[i].client == first->client && targets[i].subdevice == first->subdevice;
		     i++) {
			list.clients[list.count] = targets[i].client;
			list.channels[list.count++] = targets[i].object;
		}
		int one = forget_if_stale(
			control(first, first->subdevice, CTRL_DISABLE_CHANNELS, &list, sizeof list), first);
		rc = one ? one : rc;
	}
	free(targets);
	return count < 0 ? -ENOMEM : rc;
}

int hami_rm_timeslice(uint64_t microseconds)
{
	long count;
	int rc = 0;
	rm.timeslice_us = microseconds;
	struct hami_target *groups = hami_objects_groups(&count);
	for (long i = 0; i < count && microseconds; i++) {
		uint64_t value = microseconds;
		int one = forget_if_stale(
			control(&groups[i], groups[i].object, CTRL_SET_TIMESLICE, &value, sizeof value),
			&groups[i]);
		rc = one ? one : rc;
	}
	free(groups);
	return count < 0 ? -ENOMEM : rc;
}

void hami_rm_forked(void)
{
	hami_objects_forked();
}
