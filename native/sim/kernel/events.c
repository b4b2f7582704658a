/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include "../core/timeline.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_BYTES ((uint64_t)1 << 30)
/* A flush looks for dead processes this often: they would go on taking turns. */
#define SWEEP_NS 10000000ull

/* Deviceless memory: written here, read through the program's own mapping. */
struct pages {
	void *address;
	uint64_t bytes;
	int fd;
	unsigned holders; /* objects and event buffers */
	struct pages *next;
};

struct event_buffer {
	struct pages *header, *records;
	uint32_t record_size, record_count;
	bool enabled, keep_newest, bound, all_users, as_root;
	uint32_t gpu, uid;
	uint16_t sequence;
	uint64_t next; /* in the GPU's switches, the first that the buffer has not had */
};

static struct {
	struct pages *all;
	uint64_t swept_ns;
} events;

static struct pages *make_pages(uint64_t bytes)
{
	struct pages *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->fd = memfd_create("hami-sim-memory", MFD_CLOEXEC);
	if (p->fd < 0 || ftruncate(p->fd, (off_t)bytes) != 0)
		goto failed;
	p->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (p->address == MAP_FAILED)
		goto failed;
	madvise(p->address, bytes, MADV_DONTFORK);
	p->bytes = bytes;
	p->holders = 1;
	p->next = events.all;
	events.all = p;
	return p;
failed:
	if (p->fd >= 0)
		close(p->fd);
	free(p);
	return NULL;
}

static void drop_pages(struct pages *p)
{
	if (!p || --p->holders)
		return;
	struct pages **at = &events.all;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	munmap(p->address, p->bytes);
	close(p->fd);
	free(p);
}

void events_free(struct object *o)
{
	drop_pages(o->pages);
	if (o->events) {
		drop_pages(o->events->header);
		drop_pages(o->events->records);
		free(o->events);
	}
}

void events_forget(void)
{
	for (struct pages *p = events.all; p; p = p->next)
		close(p->fd);
	memset(&events, 0, sizeof events);
}

static uint32_t fill_memory(struct object *o, const struct rm_alloc *a)
{
	const struct rm_memory_params *p = (const struct rm_memory_params *)(uintptr_t)a->params;
	if (!p || a->size != sizeof *p || !p->head.size || p->head.size > MOST_BYTES)
		return RM_INVALID_ARGUMENT;
	o->pages = make_pages(p->head.size);
	return o->pages ? RM_OK : RM_NO_MEMORY;
}

static struct pages *find_pages(uint32_t client, uint32_t handle, int fd, uint64_t bytes)
{
	const struct object *o = objects_find(client, handle, fd);
	return o && o->pages && o->pages->bytes >= bytes ? o->pages : NULL;
}

static uint32_t fill_buffer(struct object *o, const struct rm_alloc *a)
{
	const struct rm_event_buffer *p = (const struct rm_event_buffer *)(uintptr_t)a->params;
	if (!p || a->size != sizeof *p || p->record_size < sizeof(struct rm_switch_record) ||
	    p->record_size % 8 || !p->record_count || p->vardata_size)
		return RM_INVALID_ARGUMENT;
	const struct object *subdevice = p->subdevice ? objects_find(o->client, p->subdevice, o->fd) : NULL;
	if (p->subdevice && (!subdevice || subdevice->class_id != RM_CLASS_SUBDEVICE))
		return RM_INVALID_OBJECT_HANDLE;
	struct pages *header = find_pages(o->client, p->header, o->fd, sizeof(struct rm_events_header));
	struct pages *records =
		find_pages(o->client, p->records, o->fd, (uint64_t)p->record_size * p->record_count);
	if (!header || !records)
		return RM_INVALID_ARGUMENT;
	o->events = calloc(1, sizeof *o->events);
	if (!o->events)
		return RM_INSUFFICIENT_RESOURCES;
	*o->events = (struct event_buffer){.header = header,
					   .records = records,
					   .record_size = p->record_size,
					   .record_count = p->record_count};
	header->holders++;
	records->holders++;
	return RM_OK;
}

uint32_t events_allocate(int fd, struct rm_alloc *a)
{
	struct object *o;
	uint32_t status = objects_add(a, fd, 0, &o);
	if (status != RM_OK)
		return status;
	status = a->class_id == RM_CLASS_EVENT_BUFFER ? fill_buffer(o, a) : fill_memory(o, a);
	if (status == RM_OK)
		a->object = o->handle;
	else
		objects_free(o->client, o->handle, fd, NULL);
	return status;
}

uint32_t events_map(int fd, const struct rm_map *m)
{
	char path[64];
	const struct object *o = objects_find(m->client, m->memory, fd);
	if (!o || !o->pages || m->device != m->client)
		return RM_INVALID_OBJECT_HANDLE;
	if (m->flags != RM_MAP_READ_ONLY || m->offset || !m->length || m->length > o->pages->bytes)
		return RM_INVALID_ARGUMENT;
	/* A description of its own, that only reads. */
	snprintf(path, sizeof path, "/proc/self/fd/%d", o->pages->fd);
	int flags = fcntl(m->fd, F_GETFD);
	int reader = open(path, O_RDONLY | O_CLOEXEC);
	if (reader < 0)
		return RM_INSUFFICIENT_RESOURCES;
	bool placed = dup3(reader, m->fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) >= 0;
	close(reader);
	return placed ? RM_OK : RM_INVALID_ARGUMENT;
}

/* From now on: what happened before is not told. */
static void skip_to_now(struct sim_view *view, struct event_buffer *b)
{
	sim_lock(view);
	timeline_advance(view, b->gpu, timeline_now());
	b->next = view->state->gpu[b->gpu].switched;
	sim_unlock(view);
}

uint32_t events_bind(struct sim_view *view, const struct object *subdevice, const struct rm_control *c)
{
	const struct rm_bind_switches *p = (const struct rm_bind_switches *)(uintptr_t)c->params;
	uint32_t size = c->command == RM_BIND_SWITCHES ? sizeof *p : RM_BIND_SWITCHES_V1_BYTES;
	if (subdevice->class_id != RM_CLASS_SUBDEVICE || !p || c->size != size)
		return RM_INVALID_ARGUMENT;
	const struct object *o = objects_find(c->client, p->buffer, subdevice->fd);
	if (!o)
		return RM_INVALID_OBJECT_HANDLE;
	struct event_buffer *b = o->events;
	if (!b || p->record_size < sizeof(struct rm_switch_record) || p->record_size > b->record_size ||
	    (b->bound && b->gpu != subdevice->gpu))
		return RM_INVALID_ARGUMENT;
	if (b->bound)
		return RM_OK;
	b->bound = true;
	b->gpu = subdevice->gpu;
	b->all_users = p->all_users;
	b->uid = getuid();
	b->as_root = geteuid() == 0;
	skip_to_now(view, b);
	return RM_OK;
}

uint32_t events_enable(struct sim_view *view, const struct object *o, const struct rm_control *c)
{
	const struct rm_events_enable *p = (const struct rm_events_enable *)(uintptr_t)c->params;
	if (!o->events || !p || c->size != sizeof *p ||
	    p->flags & ~(RM_EVENTS_KEEP_NEWEST | RM_EVENTS_KEEP_OLDEST))
		return RM_INVALID_ARGUMENT;
	if (p->enable && !o->events->enabled)
		skip_to_now(view, o->events);
	o->events->enabled = p->enable;
	if (p->flags & (RM_EVENTS_KEEP_NEWEST | RM_EVENTS_KEEP_OLDEST))
		o->events->keep_newest = p->flags & RM_EVENTS_KEEP_NEWEST;
	return RM_OK;
}

uint32_t events_update_get(const struct object *o, const struct rm_control *c)
{
	const struct rm_events_get *p = (const struct rm_events_get *)(uintptr_t)c->params;
	if (!o->events || !p || c->size != sizeof *p || p->records >= o->events->record_count || p->vardata)
		return RM_INVALID_ARGUMENT;
	struct rm_events_header *h = o->events->header->address;
	h->get = p->records;
	h->count = (h->put + o->events->record_count - h->get) % o->events->record_count;
	h->dropped = 0;
	return RM_OK;
}

static void put_record(struct sim_view *view, struct event_buffer *b, const struct sim_switch *s)
{
	struct rm_events_header *h = b->header->address;
	uint32_t next = (h->put + 1) % b->record_count;
	bool hidden = s->uid != b->uid && !b->as_root;
	struct rm_switch_record r = {
		.type = RM_RECORD_SWITCH,
		.tag = s->on ? RM_TAG_START : RM_TAG_END,
		.sequence = b->sequence++,
		.context = hidden ? 0 : sim_context_id(s->slot, s->reuse),
		.pid = hidden ? RM_PID_HIDDEN : (uint32_t)s->pid,
		.gpu_instance = 0xff,
		.compute_instance = 0xff,
		.timestamp_ns = s->at_ns + view->state->clock_offset_ns,
	};
	if (!b->keep_newest && next == h->get) {
		h->dropped++;
		return;
	}
	memcpy((char *)b->records->address + (size_t)h->put * b->record_size, &r, sizeof r);
	__atomic_store_n(&h->put, next, __ATOMIC_RELEASE);
}

uint32_t events_flush(struct sim_view *view, const struct object *o)
{
	struct event_buffer *b = o->events;
	if (!b)
		return RM_INVALID_ARGUMENT;
	if (!b->bound || !b->enabled)
		return RM_OK;
	sim_lock(view);
	uint64_t now = timeline_now();
	const struct sim_gpu *gpu = &view->state->gpu[b->gpu];
	if (now - events.swept_ns >= SWEEP_NS) {
		sim_sweep(view);
		events.swept_ns = now;
	}
	timeline_advance(view, b->gpu, now);
	if (gpu->switched - b->next > SIM_SWITCHES) {
		b->sequence = (uint16_t)(b->sequence + gpu->switched - SIM_SWITCHES - b->next);
		b->next = gpu->switched - SIM_SWITCHES;
	}
	for (; b->next < gpu->switched; b->next++) {
		const struct sim_switch *s = &gpu->switch_log[b->next % SIM_SWITCHES];
		if (s->at_ns > now)
			break; /* a switch under way */
		if (b->all_users || s->uid == b->uid)
			put_record(view, b, s);
	}
	sim_unlock(view);
	return RM_OK;
}
