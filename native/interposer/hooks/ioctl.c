/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctl hook. Reads this process's requests to the resource manager on /dev/nvidiactl, whoever makes them
 * (libcuda, Vulkan, OpenGL, the program itself), charges device memory, and records the objects that carry
 * work.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/log.h"
#include "base/secure.h"
#include "base/table.h"
#include "driver/libc.h"
#include "driver/rm_forms.h"
#include "driver/rm_objects.h"
#include "limits/channels.h"
#include "limits/charge.h"
#include "limits/share.h"
#include "rm_abi.h"

static int refuse(const struct hami_rm_request *r)
{
	*r->status = RM_NO_MEMORY;
	return 0; /* to libcuda the GPU is full */
}

/* Returns the key of the object in a request that was answered: the driver may have chosen the handle. */
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
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		put_memory((struct hami_entry){.bytes = r->bytes}, r);
	} else {
		hami_memory_release(r->bytes);
		if (!rc && *r->status == RM_NO_MEMORY)
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
		hami_log(0, "no memory to remember a channel by, which could then not be paused; "
			    "it is refused\n");
		return refuse(r);
	}
	int rc = hami_real_ioctl()(fd, request, argument);
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
	int rc = hami_real_ioctl()(fd, request, argument);
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

/*
 * Watches a second handle for memory, which stays charged until both are freed. Memory of another process
 * stays charged to that one.
 */
static int watch_dup(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	const struct rm_dup *d = r->argument;
	struct hami_entry copy;
	int shared = hami_table_share(hami_object_key(d->client_from, d->object_from), &copy);
	if (shared == -ENOMEM) {
		hami_log(0, "no memory to remember an allocation's second handle by; it is refused\n");
		return refuse(r);
	}
	int rc = hami_real_ioctl()(fd, request, argument);
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
	bool timeslice = c->command == RM_GROUP_SET_TIMESLICE && c->size == sizeof(uint64_t) && c->params;
	bool work = timeslice || c->command == RM_GROUP_SCHEDULE || c->command == RM_CHANNEL_SCHEDULE;
	uint64_t wanted = hami_channels_wanted_timeslice();
	if (timeslice && wanted)
		memcpy((void *)(uintptr_t)c->params, &wanted, sizeof wanted);
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	/* libcuda sets a timeslice on its compute group and on no other. */
	if (work && !rc && !c->status && hami_objects_start(hami_object_key(c->client, c->object), timeslice))
		hami_share_begin();
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
		return hami_real_ioctl()(fd, request, argument);
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
	return hami_real_ioctl()(fd, request, argument);
}
