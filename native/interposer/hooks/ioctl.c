/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctl hook. Reads this process's requests to the resource manager on /dev/nvidiactl, whoever makes them
 * (libcuda, Vulkan, OpenGL, the program itself), charges device memory, and records the objects that carry
 * work.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secure.h"
#include "base/table.h"
#include "driver/libc.h"
#include "driver/movable.h"
#include "driver/rm_forms.h"
#include "driver/rm_gpu.h"
#include "driver/rm_objects.h"
#include "limits/channels.h"
#include "limits/charge.h"
#include "limits/hold.h"
#include "limits/outstanding.h"
#include "limits/share.h"
#include "limits/swap.h"
#include "region/process.h"
#include "rm_abi.h"

#define UVM_NAME "/nvidia-uvm"

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

/* Returns the slice of an object; -1 when it is on no slice's GPU. With one slice, everything is its. */
static int slice_of(uint32_t client, uint32_t object)
{
	return hami_slice_count() > 1 ? hami_objects_slice(hami_object_key(client, object)) : 0;
}

/* The same for an object that has just been made: a device's, which those below it inherit. */
static int slice_of_new(int fd, const struct hami_rm_request *r)
{
	if (hami_slice_count() <= 1)
		return 0;
	return r->class_id == RM_CLASS_DEVICE ? hami_rm_gpu_slice(fd, r->client, r->instance) : -1;
}

static int watch_memory(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	int slice = slice_of(r->client, r->parent);
	hami_swap_await(); /* of programs that need no context */
	if (slice < 0 || hami_swap_ends_away() ||
	    hami_memory_charge(hami_only((unsigned int)slice), r->bytes))
		return refuse(r);
	const uint32_t slices = hami_only((unsigned int)slice);
	hami_table_expect(hami_object_key(r->client, *r->object));
	struct hami_movable asked;
	const bool moves = hami_movable_tracked() && hami_movable_read(request, argument, &asked);
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		put_memory((struct hami_entry){.bytes = r->bytes, .slices = slices}, r);
		if (moves)
			hami_movable_made(fd, *r->object, &asked);
	} else {
		hami_memory_release(slices, r->bytes);
		if (!rc && *r->status == RM_NO_MEMORY)
			hami_memory_lacking(slices, r->bytes);
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
	if (hami_objects_is_work(r->class_id) && slice_of(r->client, r->parent) < 0)
		return refuse(r);
	struct hami_object *object = hami_object_new();
	if (!object) {
		hami_log(0, "no memory to remember a channel by, which could then not be paused; "
			    "it is refused\n");
		return refuse(r);
	}
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		struct hami_made made = {.fd = fd,
					 .class_id = r->class_id,
					 .engine = r->engine,
					 .parent = hami_object_key(r->client, r->parent),
					 .key = key_of(r),
					 .context = hami_known_making(),
					 .slice = slice_of_new(fd, r)};
		hami_objects_add(object, &made);
	} else {
		hami_object_drop(object);
	}
	errno = saved;
	return rc;
}

static void unmake_object(uint64_t key)
{
	struct hami_sums sums;
	hami_objects_free(key, &sums);
	hami_memory_release_sums(&sums);
}

static int watch_unmake(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	uint64_t key = key_of(r);
	const bool absent = hami_swap_absent(key);
	if (absent)
		*r->status = RM_OK;
	int rc = absent ? 0 : hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !*r->status) {
		if (hami_movable_tracked())
			hami_movable_gone((uint32_t)(key >> 32), (uint32_t)key);
		struct hami_entry memory = hami_table_take(key);
		if (memory.key)
			hami_memory_release((uint32_t)memory.slices, memory.bytes);
		else
			unmake_object(key);
	}
	errno = saved;
	return rc;
}

/* Remembers a second handle of what is no memory of ours: it may be a group, below which channels are made. */
static void add_duplicate(struct hami_object *object, int fd, const struct hami_rm_request *r)
{
	const struct hami_region *region = hami_region();
	const bool of_server = region && region->step->mode == HAMI_MODE_MPS;
	struct hami_made made = {.duplicate = of_server ? HAMI_DUPLICATE_OF_SERVER : HAMI_DUPLICATE,
				 .fd = fd,
				 .parent = hami_object_key(r->client, r->parent),
				 .key = key_of(r),
				 .slice = hami_slice_count() > 1 ? -1 : 0};
	hami_objects_add(object, &made);
}

/*
 * Watches a second handle: for memory, which stays charged until both are freed; memory of another process stays charged
 * to that one. Or for a group of channels.
 */
static int watch_dup(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	const struct rm_dup *d = r->argument;
	struct hami_entry copy;
	if (hami_movable_tracked())
		hami_movable_fix(d->client_from, d->object_from);
	const int shared = hami_table_share(hami_object_key(d->client_from, d->object_from), &copy);
	struct hami_object *object = shared == -ENOENT ? hami_object_new() : NULL;
	if (shared && !object) {
		hami_log(0, "no memory to remember an object's second handle by; it is refused\n");
		return refuse(r);
	}
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	const bool made = !rc && !*r->status;
	if (object && made)
		add_duplicate(object, fd, r);
	else if (object)
		hami_object_drop(object);
	else if (made)
		put_memory(copy, r);
	else
		hami_memory_release((uint32_t)copy.slices, hami_table_unshare(&copy));
	errno = saved;
	return rc;
}

/*
 * Watches a handle by which other GPUs reach memory. It keeps the memory on the GPU, and charged, as a second handle does;
 * what is done with it later may tell its address to another process.
 */
static int watch_fabric(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	struct rm_fabric params = {0};
	struct hami_entry held;
	if (!r->argument)
		return refuse(r); /* what it asks for cannot be read */
	const bool known = hami_rm_copy(&params, r->argument, sizeof params);
	int shared = hami_table_share(hami_object_key(r->client, params.memory), &held);
	if (shared == -ENOENT)
		shared = hami_table_share(hami_object_key(r->client, RM_FABRIC_MEMORY_BEFORE_535(params)),
					  &held);
	if (shared == -ENOMEM) {
		hami_log(0,
			 "no memory to remember an allocation's handle for other GPUs by; it is refused\n");
		return refuse(r);
	}
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	const bool made = !rc && !*r->status;
	if (made && hami_movable_tracked() && !(known && hami_movable_reached(request, argument, &params)))
		hami_swap_share();
	if (made && !shared)
		put_memory(held, r);
	else if (!shared)
		hami_memory_release((uint32_t)held.slices, hami_table_unshare(&held));
	errno = saved;
	return rc;
}

static int watch_control(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	const struct rm_control *c = r->argument;
	bool timeslice = c->command == RM_GROUP_SET_TIMESLICE && c->size == sizeof(uint64_t) && c->params;
	bool work = timeslice || c->command == RM_GROUP_SCHEDULE || c->command == RM_CHANNEL_SCHEDULE;
	int slice = timeslice ? slice_of(c->client, c->object) : -1;
	uint64_t wanted = slice < 0 ? 0 : hami_channels_wanted_timeslice((unsigned int)slice);
	if (c->command >> 16 == RM_CLASS_FABRIC)
		hami_swap_share();
	if (timeslice && wanted)
		memcpy((void *)(uintptr_t)c->params, &wanted, sizeof wanted);
	int rc = hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	/* libcuda sets a timeslice on its compute group and on no other. */
	int begun = work && !rc && !c->status
			    ? hami_objects_start(hami_object_key(c->client, c->object), timeslice)
			    : -1;
	if (begun >= 0)
		hami_share_begin((unsigned int)begun);
	errno = saved;
	return rc;
}

static bool is_uvm(int fd)
{
	char link[32], path[PATH_MAX];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path);
	const ssize_t name = sizeof UVM_NAME - 1;
	return length >= name && memcmp(path + length - name, UVM_NAME, (size_t)name) == 0;
}

/* Follows how memory that may be moved is mapped. */
static int watch_uvm(int fd, unsigned long request, void *argument)
{
	hami_hold_enter(HAMI_HOLD_MEMORY);
	const struct uvm_free before =
		*(const struct uvm_free *)argument; /* base and length come first in all three */
	const bool absent = request == UVM_UNMAP_EXTERNAL && hami_swap_absent_at(before.base) && is_uvm(fd);
	if (absent)
		((struct uvm_unmap_external *)argument)->status = RM_OK;
	int rc = absent ? 0 : hami_real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && is_uvm(fd)) {
		if (request == UVM_MAP_EXTERNAL)
			hami_movable_mapped(fd, argument);
		else
			hami_movable_unmapped(before.base, before.length);
	}
	hami_hold_leave(HAMI_HOLD_MEMORY);
	errno = saved;
	return rc;
}

static int watch(int fd, unsigned long request, void *argument, const struct hami_rm_request *r)
{
	switch (r->kind) {
	case HAMI_RM_MAKE:
		if (r->bytes)
			return watch_memory(fd, request, argument, r);
		if (hami_objects_keep(r->class_id))
			return watch_object(fd, request, argument, r);
		break;
	case HAMI_RM_UNMAKE:
		return watch_unmake(fd, request, argument, r);
	case HAMI_RM_DUP:
		return watch_dup(fd, request, argument, r);
	case HAMI_RM_FABRIC:
		return watch_fabric(fd, request, argument, r);
	case HAMI_RM_CONTROL:
		return watch_control(fd, request, argument, r);
	case HAMI_RM_MAP:
		if (hami_movable_tracked())
			hami_movable_fix(r->client, *r->object);
		break;
	case HAMI_RM_OTHER:
		break;
	}
	return hami_real_ioctl()(fd, request, argument);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	const bool tracked = hami_movable_tracked();
	if (tracked && argument &&
	    (request == UVM_MAP_EXTERNAL || request == UVM_UNMAP_EXTERNAL || request == UVM_FREE))
		return watch_uvm(fd, request, argument);
	if (_IOC_TYPE(request) != 'F' || !argument)
		return hami_real_ioctl()(fd, request, argument);
	const struct hami_rm_request r = hami_rm_read(request, argument);
	const bool holds = tracked && (r.kind == HAMI_RM_UNMAKE || r.kind == HAMI_RM_FABRIC ||
				       (r.kind == HAMI_RM_MAKE && r.bytes));
	if (holds)
		hami_hold_enter(HAMI_HOLD_MEMORY);
	int rc = watch(fd, request, argument, &r);
	if (holds)
		hami_hold_leave(HAMI_HOLD_MEMORY);
	return rc;
}
