/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libhami-sim-kernel.so: the `ioctl` that answers for the simulated /dev/nvidiactl ($HAMI_SIM/nvidiactl) and
 * /dev/nvidia-uvm ($HAMI_SIM/nvidia-uvm, whose requests uvm.c answers). Preload it behind an interposer:
 * LD_PRELOAD="libhami-hpc.so libhami-sim-kernel.so". Every other descriptor's calls go on to the real kernel.
 *
 * As on the GPU (driver 580): a group is paused when all of its compute channels are disabled, running
 * kernels included; pausing and resuming take pause_us and resume_us of the model, in the call; disabling
 * with onlyScheduling never returns; GPFIFO_SCHEDULE and PREEMPT report success and pause nothing. Whose
 * channels are disabled and not enabled again stays paused. Any process may do it to any other, by the handles
 * of its client and channels. Faults named rm_COMMAND (rm_2080110b=0x1b)
 * become the control's status.
 *
 * Device memory is the kernel's to give, in whatever form it is asked for: each object is charged to the process
 * while it exists, and NV_ERR_NO_MEMORY says that the GPU has no room. libcuda counts managed memory by itself.
 */
#include "../core/channels.h"
#include "../core/faults.h"
#include "../core/timeline.h"
#include "channels.h"
#include "events.h"
#include "memory.h"
#include "uvm.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct {
	pthread_mutex_t lock;
	bool opened, failed;
	struct sim_view view;
	struct faults faults;
	struct stat control_file, uvm_file;
} kernel = {.lock = PTHREAD_MUTEX_INITIALIZER, .view = {.fd = -1, .slot_fd = -1, .slot = SIM_NO_SLOT}};

static void before_fork(void)
{
	pthread_mutex_lock(&kernel.lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&kernel.lock);
}

static void after_fork_child(void)
{
	objects_forget();
	events_forget();
	uvm_forget();
	sim_fork_child(&kernel.view);
	pthread_mutex_unlock(&kernel.lock);
}

/*
 * At load, so before libcuda does the same: handlers before a fork run in reverse, and libcuda's mutex comes
 * first.
 */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* With the mutex held: maps the machine at the first call. */
static bool ready(void)
{
	char path[PATH_MAX];
	if (kernel.opened || kernel.failed)
		return kernel.opened;
	const char *dir = getenv("HAMI_SIM");
	kernel.failed = true;
	if (!dir)
		return false;
	snprintf(path, sizeof path, "%.3000s/nvidiactl", dir);
	if (stat(path, &kernel.control_file) != 0)
		return false;
	snprintf(path, sizeof path, "%.3000s/nvidia-uvm", dir);
	if (stat(path, &kernel.uvm_file) != 0 || sim_open(&kernel.view) != 0 ||
	    faults_read(&kernel.faults, kernel.view.dir) != 0)
		return false;
	kernel.failed = false;
	return kernel.opened = true;
}

static bool is_file(int fd, const struct stat *file)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

static void sleep_until(uint64_t at_ns)
{
	struct timespec t = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static uint32_t word(uint64_t params, uint32_t size, uint32_t at)
{
	return params && size >= 4 * (at + 1) ? ((const uint32_t *)(uintptr_t)params)[at] : 0;
}

static uint32_t make_client(uint32_t slot, bool named)
{
	if (!named)
		return kernel.view.slot != SIM_NO_SLOT || !sim_slot_take(&kernel.view)
			       ? RM_OK
			       : RM_INSUFFICIENT_RESOURCES;
	if (slot >= SIM_MAX_SLOTS || kernel.view.state->slot[slot].pid != getpid())
		return RM_INVALID_ARGUMENT;
	kernel.view.slot = slot;
	return RM_OK;
}

static uint32_t new_client(void)
{
	sim_lock(&kernel.view);
	uint32_t client = sim_new_client(&kernel.view, RM_CLIENT_HANDLES);
	sim_unlock(&kernel.view);
	return client;
}

/* The slot of a group's work: a line of this process, or else the process's own. */
static uint32_t line_of(uint32_t number)
{
	const bool is_line = number && number <= SIM_MAX_SLOTS &&
			     kernel.view.state->slot[number - 1].owner == kernel.view.slot;
	return is_line ? number - 1 : kernel.view.slot;
}

static uint32_t allocate(int fd, struct rm_alloc *a)
{
	struct object *o;
	bool group = a->class_id == RM_CLASS_GROUP;
	uint32_t parameter = word(a->params, a->size, group ? offsetof(struct rm_group, engine) / 4 : 0);
	uint32_t status = RM_OK;
	if (a->class_id == RM_CLASS_FABRIC)
		return memory_fabric(fd, a);
	if (class_is_memory(a->class_id))
		return memory_allocate(&kernel.view, fd, a);
	if (class_is_of_events(a->class_id))
		return events_allocate(fd, a);
	if (a->class_id == RM_CLASS_CLIENT)
		status = make_client(parameter, a->params != 0);
	if (a->class_id == RM_CLASS_DEVICE &&
	    (parameter = sim_rm_instance(kernel.view.machine.gpu_count, parameter)) == UINT32_MAX)
		status = RM_INVALID_ARGUMENT;
	if (status == RM_OK)
		status = objects_add(a, fd, a->class_id == RM_CLASS_CLIENT ? new_client() : parameter, &o);
	if (status != RM_OK)
		return status;
	if (group)
		o->slot = line_of(word(a->params, a->size, 0));
	status = channels_add(&kernel.view, o);
	if (status == RM_OK)
		a->object = o->handle;
	else
		objects_free(o->client, o->handle, fd, NULL);
	return status;
}

static uint32_t timeslice(struct object *group, const struct rm_control *c)
{
	uint64_t *us = (uint64_t *)(uintptr_t)c->params;
	if (group->class_id != RM_CLASS_GROUP || c->size != sizeof *us || !us)
		return RM_INVALID_ARGUMENT;
	uint64_t *of_line = &kernel.view.state->slot[group->slot].gpu[group->gpu].timeslice_ns;
	uint32_t status = RM_OK;
	sim_lock(&kernel.view);
	timeline_advance(&kernel.view, group->gpu, timeline_now());
	if (c->command == RM_GROUP_GET_TIMESLICE)
		*us = group->compute ? *of_line / 1000 : group->timeslice_us;
	else if (!*us || *us > 1000000000)
		status = RM_INVALID_ARGUMENT;
	else {
		*of_line = group->compute ? *us * 1000 : *of_line;
		group->timeslice_us = (uint32_t)*us;
		if (group->compute)
			timeline_begin_anew(&kernel.view, group->gpu);
	}
	sim_unlock(&kernel.view);
	return status;
}

/* On a GPU each channel has an id of its own; here those of a line have one. */
static uint32_t context_id(const struct object *channel, const struct rm_control *c)
{
	uint32_t *id = (uint32_t *)(uintptr_t)c->params;
	if (!object_is_channel(channel) || c->size != sizeof *id || !id)
		return RM_INVALID_ARGUMENT;
	*id = channel->compute ? sim_context_id(channel->slot, kernel.view.state->slot[channel->slot].reuse)
			       : UINT32_MAX;
	return RM_OK;
}

static uint32_t gpu_of_uuid(const struct object *client, const struct rm_control *c)
{
	struct rm_gpu_of_uuid *p = (struct rm_gpu_of_uuid *)(uintptr_t)c->params;
	char hex[33];
	if (client->class_id != RM_CLASS_CLIENT || c->size != sizeof *p || !p || p->flags != RM_UUID_BINARY)
		return RM_INVALID_ARGUMENT;
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", p->uuid[i]);
	for (uint32_t gpu = 0; gpu < kernel.view.machine.gpu_count; gpu++)
		if (strcmp(hex, kernel.view.machine.gpu[gpu].uuid_hex) == 0) {
			p->gpu = 0x100 * (gpu + 1);
			p->instance = sim_rm_instance(kernel.view.machine.gpu_count, gpu);
			p->subdevice_instance = 0;
			return RM_OK;
		}
	return RM_OBJECT_NOT_FOUND;
}

/* With the mutex held. *effect is when the caller gets its answer. */
static uint32_t control(int fd, const struct rm_control *c, uint64_t *effect)
{
	struct object *o = objects_find(c->client, c->object, fd);
	if (!objects_find(c->client, c->client, fd))
		return RM_INVALID_CLIENT;
	if (!o)
		return RM_INVALID_OBJECT_HANDLE;
	switch (c->command) {
	case RM_GPU_OF_UUID:
		return gpu_of_uuid(o, c);
	case RM_DISABLE_CHANNELS:
		return channels_disable(&kernel.view, o, c, effect);
	case RM_GROUP_SET_TIMESLICE:
	case RM_GROUP_GET_TIMESLICE:
		return timeslice(o, c);
	case RM_CHANNEL_CONTEXT_ID:
		return context_id(o, c);
	case RM_SIM_CHANNELS:
		if (c->size != sizeof(struct rm_sim_channels) || !c->params)
			return RM_INVALID_ARGUMENT;
		*(struct rm_sim_channels *)(uintptr_t)c->params = channels_sums(&kernel.view, o->gpu);
		return RM_OK;
	case RM_SIM_SHARE:
		return memory_share(o, c);
	case RM_BIND_SWITCHES:
	case RM_BIND_SWITCHES_V1:
		return events_bind(&kernel.view, o, c);
	case RM_EVENTS_ENABLE:
		return events_enable(&kernel.view, o, c);
	case RM_EVENTS_UPDATE_GET:
		return events_update_get(o, c);
	case RM_EVENTS_FLUSH:
		return events_flush(&kernel.view, o);
	case RM_GROUP_SCHEDULE:
	case RM_GROUP_PREEMPT:
		return o->class_id == RM_CLASS_GROUP ? RM_OK : RM_INVALID_ARGUMENT;
	case RM_CHANNEL_SCHEDULE:
		return object_is_channel(o) ? RM_OK : RM_INVALID_ARGUMENT;
	default:
		return RM_NOT_SUPPORTED;
	}
}

/* Faults of the GPU that the control's object is on. */
static bool hit_gpu(const char *name, int fd, const struct rm_control *c, int *code)
{
	pthread_mutex_lock(&kernel.lock);
	const struct object *o = objects_find(c->client, c->object, fd);
	uint32_t gpu = o ? o->gpu : 0;
	pthread_mutex_unlock(&kernel.lock);
	return o && faults_hit_gpu(&kernel.faults, name, gpu, code);
}

static void answer_control(int fd, struct rm_control *c)
{
	char name[32];
	int code = 0;
	uint64_t effect = 0;
	snprintf(name, sizeof name, "rm_%08x", c->command);
	if (kernel.faults.count && (faults_hit(&kernel.faults, name, &code) || hit_gpu(name, fd, c, &code)) &&
	    code) {
		c->status = (uint32_t)code;
		return;
	}
	pthread_mutex_lock(&kernel.lock);
	c->status = control(fd, c, &effect);
	pthread_mutex_unlock(&kernel.lock);
	while (effect == SIM_NEVER)
		pause();
	if (effect)
		sleep_until(effect);
}

static void give(const struct object *o)
{
	if (o->memory)
		memory_give(&kernel.view, o->memory);
	else
		channels_remove(&kernel.view, o);
}

static uint32_t free_object(int fd, uint32_t client, uint32_t handle)
{
	const struct object *o = objects_find(client, handle, fd);
	bool is_memory = o && class_is_memory(o->class_id);
	uint32_t status = objects_free(client, handle, fd, give);
	if (status == RM_OK && !is_memory)
		channels_settle(&kernel.view);
	return status;
}

static uint32_t answer_heap(int fd, struct rm_heap *h)
{
	return h->function == RM_HEAP_FREE ? free_object(fd, h->client, h->data.free.memory)
					   : memory_heap(&kernel.view, fd, h);
}

static uint32_t answer_map(int fd, const struct rm_map *m)
{
	return m->fd != fd && is_file(m->fd, &kernel.control_file) ? events_map(fd, m) : RM_INVALID_ARGUMENT;
}

static uint32_t allocate_short(int fd, struct rm_alloc_short *s)
{
	struct rm_alloc a = {.client = s->client,
			     .parent = s->parent,
			     .object = s->object,
			     .class_id = s->class_id,
			     .params = s->params,
			     .size = s->size};
	uint32_t status = allocate(fd, &a);
	s->object = a.object;
	return status;
}

/* A request of this number and size; false when there is none such. */
static bool answer_plain(int fd, uint32_t number, uint32_t size, void *argument)
{
	struct rm_free *f = argument;
	if (number == RM_NR_CONTROL && size == sizeof(struct rm_control)) {
		answer_control(fd, argument);
		return true;
	}
	bool known = true;
	pthread_mutex_lock(&kernel.lock);
	if (number == RM_NR_ALLOC && size == sizeof(struct rm_alloc))
		((struct rm_alloc *)argument)->status = allocate(fd, argument);
	else if (number == RM_NR_ALLOC && size == sizeof(struct rm_alloc_short))
		((struct rm_alloc_short *)argument)->status = allocate_short(fd, argument);
	else if (number == RM_NR_FREE && size == sizeof *f)
		f->status = free_object(fd, f->client, f->object);
	else if (number == RM_NR_DUP && size == sizeof(struct rm_dup))
		((struct rm_dup *)argument)->status = memory_dup(fd, argument);
	else if (number == RM_NR_HEAP && size == sizeof(struct rm_heap))
		((struct rm_heap *)argument)->status = answer_heap(fd, argument);
	else if (number == RM_NR_MAP && size == sizeof(struct rm_map))
		((struct rm_map *)argument)->status = answer_map(fd, argument);
	else
		known = false;
	pthread_mutex_unlock(&kernel.lock);
	return known;
}

static int answer(int fd, unsigned long request, void *argument)
{
	uint32_t number = _IOC_NR(request), size = _IOC_SIZE(request);
	if (number == RM_NR_TRANSFER && size == sizeof(struct rm_transfer)) {
		const struct rm_transfer *t = argument;
		number = t->number;
		size = t->size;
		argument = (void *)(uintptr_t)t->argument;
	}
	if (argument && answer_plain(fd, number, size, argument))
		return 0;
	errno = EINVAL;
	return -1;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	bool control_request = _IOC_TYPE(request) == 'F', uvm_request = uvm_is_request(request);
	if (argument && (control_request || uvm_request)) {
		pthread_mutex_lock(&kernel.lock);
		bool mine = ready() && is_file(fd, control_request ? &kernel.control_file : &kernel.uvm_file);
		if (mine && uvm_request)
			uvm_answer(&kernel.view, fd, request, argument);
		pthread_mutex_unlock(&kernel.lock);
		if (mine)
			return uvm_request ? 0 : answer(fd, request, argument);
	}
	return (int)syscall(SYS_ioctl, fd, request, argument);
}
