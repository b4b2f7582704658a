/* SPDX-License-Identifier: Apache-2.0 */
#include "rm.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>

#include "interposer.h"
#include "table.h"

/* NV_ESC_RM_*: the ioctl's number, type 'F'. */
enum { RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b };
enum {
	CLASS_SUBDEVICE = 0x2080,
	CLASS_CHANNEL_GROUP = 0xa06c,
	CLASS_CHANNEL_LOW_BYTE = 0x6f, /* AMPERE_CHANNEL_GPFIFO_A 0xc56f, HOPPER 0xc86f, ... */
	CLASS_DEVICE_MEMORY = 0x40,    /* NV01_MEMORY_LOCAL_USER */
};
#define STATUS_NO_MEMORY 0x51             /* NV_ERR_NO_MEMORY */
#define CTRL_SET_TIMESLICE 0xa06c0103u    /* on a group: u64 microseconds */
#define CTRL_DISABLE_CHANNELS 0x2080110bu /* on a subdevice */
#define MAX_PER_CONTROL 64
#define PAGE_BYTES (2ull << 20)

struct rm_free { /* NVOS00_PARAMETERS */
	uint32_t client, parent, object, status;
};
struct rm_control { /* NVOS54_PARAMETERS */
	uint32_t client, object, command, flags;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};
struct rm_alloc { /* NVOS64_PARAMETERS; the 32-byte form (NVOS21) has `status` where `rights` is */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint64_t rights __attribute__((aligned(8)));
	uint32_t size, flags, status;
};
struct rm_alloc_short {
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};
struct memory_params { /* the head of NV_MEMORY_ALLOCATION_PARAMS */
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attributes, attributes2, format, compression, zcull;
	uint64_t range_low __attribute__((aligned(8))), range_high, size;
};
_Static_assert(offsetof(struct memory_params, size) == 64, "as in nvos.h");
struct disable_channels { /* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
	uint8_t disable;
	uint32_t count;
	uint8_t only_disable_scheduling, rewind_gp_put;
	uint64_t preempt_event __attribute__((aligned(8)));
	uint32_t clients[MAX_PER_CONTROL], channels[MAX_PER_CONTROL];
};
_Static_assert(sizeof(struct disable_channels) == 536, "as in ctrl2080fifo.h");

enum kind { SUBDEVICE, GROUP, CHANNEL };
struct object {
	enum kind kind;
	int fd; /* the descriptor that owns the client: a control must go through it */
	uint32_t client, parent, handle;
	bool compute; /* a group on which libcuda set a timeslice */
};

typedef int ioctl_fn(int, unsigned long, ...);

static struct {
	pthread_mutex_t lock;
	struct object objects[2048];
	int count;
	_Atomic int compute_groups;
	_Atomic uint64_t timeslice_us; /* 0: libcuda's own */
	ioctl_fn *_Atomic real;
} rm = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ioctl_fn *real_ioctl(void)
{
	if (!rm.real)
		rm.real = (ioctl_fn *)dlsym(RTLD_NEXT, "ioctl");
	return rm.real;
}

static int control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size)
{
	struct rm_control c = {.client = client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	if (real_ioctl()(fd, _IOWR('F', RM_CONTROL, struct rm_control), &c))
		return -errno;
	return c.status ? -EPERM : 0;
}

static void add(struct object object)
{
	pthread_mutex_lock(&rm.lock);
	if (rm.count < (int)(sizeof rm.objects / sizeof *rm.objects))
		rm.objects[rm.count++] = object;
	pthread_mutex_unlock(&rm.lock);
}

static void learn_alloc(int fd, const struct rm_alloc *a)
{
	struct object o = {.fd = fd, .client = a->client, .parent = a->parent, .handle = a->object};
	if (a->class_id == CLASS_SUBDEVICE)
		o.kind = SUBDEVICE;
	else if (a->class_id == CLASS_CHANNEL_GROUP)
		o.kind = GROUP;
	else if ((a->class_id & 0xff) == CLASS_CHANNEL_LOW_BYTE)
		o.kind = CHANNEL;
	else
		return;
	add(o);
}

static uint64_t memory_key(uint32_t client, uint32_t object)
{
	return (uint64_t)client << 32 | object;
}

/* The owner of a memory's entry in the table: its client, with which it goes. */
static void *memory_owner(uint32_t client)
{
	return (void *)(uintptr_t)client;
}

/* Bytes of device memory that this asks for; 0 when it asks for something else. */
static uint64_t memory_asked(const struct rm_alloc *a)
{
	if (a->class_id != CLASS_DEVICE_MEMORY || !a->params)
		return 0;
	struct memory_params p;
	memcpy(&p, (const void *)(uintptr_t)a->params, sizeof p);
	if ((p.attributes >> 25 & 3) != 0) /* NVOS32_ATTR_LOCATION: 0 is the GPU's own memory */
		return 0;
	/* An odd size takes whole pages, as NVML's figure for the process shows. */
	return p.size > UINT64_MAX - PAGE_BYTES ? UINT64_MAX
						: (p.size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* An object goes with its parent and with its client. */
static void learn_free(const struct rm_free *f)
{
	uint64_t bytes = f->object == f->client ? hami_table_take_owner(memory_owner(f->client))
						: hami_table_take(memory_key(f->client, f->object)).bytes;
	if (bytes)
		hami_memory_release(bytes);
	if (bytes && f->object != f->client)
		return; /* a memory object is not in the list, and has no children there */
	pthread_mutex_lock(&rm.lock);
	int kept = 0;
	for (int i = 0; i < rm.count; i++) {
		const struct object *o = &rm.objects[i];
		bool gone = o->client == f->client &&
			    (f->object == f->client || o->handle == f->object || o->parent == f->object);
		if (gone && o->compute)
			rm.compute_groups--;
		if (!gone)
			rm.objects[kept++] = *o;
	}
	rm.count = kept;
	pthread_mutex_unlock(&rm.lock);
}

/* True when this names a compute group for the first time: libcuda sets a timeslice on no other. */
static bool learn_timeslice(const struct rm_control *c)
{
	bool fresh = false;
	pthread_mutex_lock(&rm.lock);
	for (int i = 0; i < rm.count; i++) {
		struct object *o = &rm.objects[i];
		if (o->kind == GROUP && o->client == c->client && o->handle == c->object && !o->compute) {
			fresh = o->compute = true;
			rm.compute_groups++;
		}
	}
	pthread_mutex_unlock(&rm.lock);
	return fresh;
}

static uint32_t alloc_status(unsigned long request, const void *argument)
{
	return _IOC_SIZE(request) == sizeof(struct rm_alloc)
		       ? ((const struct rm_alloc *)argument)->status
		       : ((const struct rm_alloc_short *)argument)->status;
}

static int watch_alloc(int fd, unsigned long request, void *argument)
{
	struct rm_alloc *a = argument;
	uint64_t bytes = memory_asked(a);
	if (bytes && hami_memory_charge(bytes)) {
		if (_IOC_SIZE(request) == sizeof *a)
			a->status = STATUS_NO_MEMORY;
		else
			((struct rm_alloc_short *)argument)->status = STATUS_NO_MEMORY;
		return 0; /* to libcuda the GPU is full */
	}
	if (bytes)
		hami_table_expect(memory_key(a->client, a->object));
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	bool made = !rc && !alloc_status(request, argument);
	if (bytes && !made)
		hami_memory_release(bytes);
	else if (bytes && !hami_table_put((struct hami_entry){.key = memory_key(a->client, a->object),
							      .bytes = bytes,
							      .owner = memory_owner(a->client)}))
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
	else if (made)
		learn_alloc(fd, a);
	errno = saved;
	return rc;
}

static int watch_control(int fd, unsigned long request, void *argument)
{
	const struct rm_control *c = argument;
	bool timeslice = c->command == CTRL_SET_TIMESLICE && c->size == sizeof(uint64_t) && c->params;
	uint64_t wanted = rm.timeslice_us;
	if (timeslice && wanted)
		memcpy((void *)(uintptr_t)c->params, &wanted, sizeof wanted);
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (timeslice && !rc && !c->status && learn_timeslice(c))
		hami_compute_begin();
	errno = saved;
	return rc;
}

static int watch_free(int fd, unsigned long request, void *argument)
{
	int rc = real_ioctl()(fd, request, argument);
	int saved = errno;
	if (!rc && !((const struct rm_free *)argument)->status)
		learn_free(argument);
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
	switch (_IOC_NR(request)) {
	case RM_ALLOC:
		return watch_alloc(fd, request, argument);
	case RM_CONTROL:
		return watch_control(fd, request, argument);
	case RM_FREE:
		return watch_free(fd, request, argument);
	default:
		return real_ioctl()(fd, request, argument);
	}
}

int hami_rm_groups(void)
{
	return rm.compute_groups;
}

/* rm.lock is held. The subdevice beside group `g`: same client, same parent device. */
static const struct object *subdevice_of(const struct object *g)
{
	for (int i = 0; i < rm.count; i++)
		if (rm.objects[i].kind == SUBDEVICE && rm.objects[i].client == g->client &&
		    rm.objects[i].parent == g->parent)
			return &rm.objects[i];
	return NULL;
}

/* Collects the channels of the compute group at or after index `*from`; false when there is none left. */
static bool next_group(int *from, struct disable_channels *list, struct object *subdevice)
{
	bool found = false;
	pthread_mutex_lock(&rm.lock);
	for (; !found && *from < rm.count; ++*from) {
		const struct object *g = &rm.objects[*from];
		const struct object *s = g->compute ? subdevice_of(g) : NULL;
		if (!s)
			continue;
		found = true;
		*subdevice = *s;
		list->count = 0;
		for (int i = 0; i < rm.count && list->count < MAX_PER_CONTROL; i++) {
			const struct object *o = &rm.objects[i];
			if (o->kind != CHANNEL || o->client != g->client || o->parent != g->handle)
				continue;
			list->clients[list->count] = o->client;
			list->channels[list->count++] = o->handle;
		}
	}
	pthread_mutex_unlock(&rm.lock);
	return found;
}

int hami_rm_pause(bool paused)
{
	int rc = 0, from = 0;
	struct disable_channels list = {.disable = paused};
	struct object subdevice;
	while (next_group(&from, &list, &subdevice)) {
		int one = list.count ? control(subdevice.fd, subdevice.client, subdevice.handle,
					       CTRL_DISABLE_CHANNELS, &list, sizeof list)
				     : 0;
		if (one)
			rc = one;
	}
	return rc;
}

int hami_rm_timeslice(uint64_t microseconds)
{
	struct object groups[64];
	int count = 0, rc = 0;
	rm.timeslice_us = microseconds;
	pthread_mutex_lock(&rm.lock);
	for (int i = 0; i < rm.count && count < 64; i++)
		if (rm.objects[i].compute)
			groups[count++] = rm.objects[i];
	pthread_mutex_unlock(&rm.lock);
	for (int i = 0; i < count && microseconds; i++) {
		uint64_t value = microseconds;
		int one = control(groups[i].fd, groups[i].client, groups[i].handle, CTRL_SET_TIMESLICE,
				  &value, sizeof value);
		if (one)
			rc = one;
	}
	return rc;
}

void hami_rm_forked(void)
{
	pthread_mutex_init(&rm.lock, NULL);
	rm.count = 0;
	rm.compute_groups = 0;
}
