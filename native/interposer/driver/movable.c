/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/movable.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "driver/rm_forms.h"

#define PAGE (2ull << 20) /* the GPU's, of which segments of pools are */

enum { BUCKETS = 1024, MADE = 4 };

struct entry {
	struct hami_movable movable;
	uint32_t mappings;
	bool fixed;
	struct entry *next;
};

static struct {
	pthread_mutex_t lock;
	_Atomic bool tracked;
	_Atomic uint64_t serial;
	size_t count;
	struct entry *buckets[BUCKETS];
} movables = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What this thread's call makes: what it holds, and the first objects. */
static _Thread_local struct {
	enum hami_holds holds;
	uint32_t count, client[MADE], handle[MADE];
} making;

static struct entry **bucket(uint32_t client, uint32_t handle)
{
	return &movables.buckets[(client * 31 + handle) % BUCKETS];
}

/* With the lock held. */
static struct entry *find(uint32_t client, uint32_t handle)
{
	struct entry *e = *bucket(client, handle);
	while (e && (e->movable.request.client != client || e->movable.request.object != handle))
		e = e->next;
	return e;
}

static bool is_handle(const struct rm_alloc *made, uint32_t client, uint32_t handle)
{
	return made->object && made->client == client && made->object == handle;
}

bool hami_movable_has(const struct hami_movable *m, uint32_t client, uint32_t handle)
{
	return is_handle(&m->request, client, handle) || is_handle(&m->fabric.request, client, handle);
}

/* The object that has this handle for other GPUs. With the lock held. */
static struct entry *find_reached(uint32_t client, uint32_t handle)
{
	for (size_t i = 0; i < BUCKETS && movables.count; i++)
		for (struct entry *e = movables.buckets[i]; e; e = e->next)
			if (is_handle(&e->movable.fabric.request, client, handle))
				return e;
	return NULL;
}

static struct entry *find_by_either(uint32_t client, uint32_t handle)
{
	struct entry *e = find(client, handle);
	return e ? e : find_reached(client, handle);
}

void hami_movable_track(void)
{
	movables.tracked = true;
}

bool hami_movable_tracked(void)
{
	return movables.tracked;
}

/* Returns whether a request is of the form that is kept. */
static bool is_kept(unsigned long number, const struct rm_alloc *a)
{
	return _IOC_NR(number) == RM_NR_ALLOC && _IOC_SIZE(number) == sizeof *a && !a->rights && !a->flags;
}

bool hami_movable_read(unsigned long number, const void *argument, struct hami_movable *out)
{
	const struct rm_alloc *a = argument;
	if (!is_kept(number, a) || !a->params)
		return false;
	const size_t size = a->size ? a->size : sizeof out->params; /* 0: the class's own */
	if (size < sizeof out->params.head || size > sizeof out->params)
		return false;
	*out = (struct hami_movable){.request = *a};
	memcpy(&out->params, (const void *)(uintptr_t)a->params, size);
	return true;
}

bool hami_movable_reached(unsigned long number, const void *argument, const struct rm_fabric *params)
{
	if (!is_kept(number, argument))
		return false;
	const struct hami_fabric made = {*(const struct rm_alloc *)argument, *params};
	const uint32_t client = made.request.client;
	pthread_mutex_lock(&movables.lock);
	struct entry *e = find(client, params->memory);
	struct entry *old = find(client, RM_FABRIC_MEMORY_BEFORE_535(*params));
	if (old)
		old->fixed = true;
	if (e && (old || e->movable.fabric.request.object)) {
		e->fixed = true;
	} else if (e) {
		e->movable.fabric = made;
	}
	pthread_mutex_unlock(&movables.lock);
	return true;
}

void hami_movable_made(int fd, uint32_t handle, const struct hami_movable *asked)
{
	struct entry *e = malloc(sizeof *e);
	if (!e)
		return; /* it stays on the GPU */
	*e = (struct entry){.movable = *asked};
	e->movable.fd = fd;
	e->movable.request.object = handle;
	e->movable.holds = making.holds;
	if (making.count < MADE) {
		making.client[making.count] = asked->request.client;
		making.handle[making.count++] = handle;
	}
	pthread_mutex_lock(&movables.lock);
	struct entry **head = bucket(asked->request.client, handle);
	e->movable.serial = ++movables.serial;
	e->next = *head;
	*head = e;
	movables.count++;
	pthread_mutex_unlock(&movables.lock);
}

void hami_movable_making(enum hami_holds holds)
{
	making.holds = holds;
	making.count = 0;
}

uint64_t hami_movable_last(void)
{
	return movables.serial;
}

void hami_movable_pool(uint64_t address, uint64_t bytes)
{
	pthread_mutex_lock(&movables.lock);
	for (size_t i = 0; i < BUCKETS && movables.count; i++)
		for (struct entry *e = movables.buckets[i]; e; e = e->next) {
			struct hami_movable *m = &e->movable;
			const bool in = address - m->base < m->length || m->base - address < bytes;
			if (e->mappings == 1 && in && m->base % PAGE == 0 && m->length % PAGE == 0)
				m->holds = HAMI_HOLDS_POOL;
		}
	pthread_mutex_unlock(&movables.lock);
}

void hami_movable_allocated(uint64_t address, uint64_t bytes)
{
	const uint64_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
	pthread_mutex_lock(&movables.lock);
	for (uint32_t i = 0; i < making.count; i++) {
		struct entry *e = find(making.client[i], making.handle[i]);
		if (!e || e->mappings != 1 || address - e->movable.base >= e->movable.length)
			continue;
		if (bytes < PAGE && e->movable.length == PAGE) { /* libcuda gives the rest to others */
			e->movable.holds = HAMI_HOLDS_SMALL;
		} else if (e->movable.base == address && e->movable.length == pages) {
			e->movable.holds = HAMI_HOLDS_ONE;
			e->movable.allocated = bytes;
		}
	}
	pthread_mutex_unlock(&movables.lock);
}

void hami_movable_fix(uint32_t client, uint32_t handle)
{
	pthread_mutex_lock(&movables.lock);
	struct entry *e = find_by_either(client, handle);
	if (e)
		e->fixed = true;
	pthread_mutex_unlock(&movables.lock);
}

/* Takes the entry out of its bucket. With the lock held. */
static void drop(struct entry **place)
{
	struct entry *gone = *place;
	*place = gone->next;
	movables.count--;
	free(gone);
}

/* Drops all of a client, or all below a device. With the lock held. */
static void drop_below(uint32_t client, uint32_t handle)
{
	for (size_t i = 0; i < BUCKETS && movables.count; i++)
		for (struct entry **e = &movables.buckets[i]; *e;) {
			const struct rm_alloc *r = &(*e)->movable.request;
			if (r->client == client && (client == handle || r->parent == handle))
				drop(e);
			else
				e = &(*e)->next;
		}
}

void hami_movable_gone(uint32_t client, uint32_t handle)
{
	pthread_mutex_lock(&movables.lock);
	struct entry **e = bucket(client, handle);
	while (*e && ((*e)->movable.request.client != client || (*e)->movable.request.object != handle))
		e = &(*e)->next;
	struct entry *reached = *e ? NULL : find_reached(client, handle);
	if (*e)
		drop(e);
	else if (reached)
		reached->movable.fabric = (struct hami_fabric){0};
	else
		drop_below(client, handle);
	pthread_mutex_unlock(&movables.lock);
}

void hami_movable_mapped(int uvm_fd, const void *argument)
{
	struct uvm_map_external m;
	if (!hami_rm_copy(&m, argument, sizeof m))
		return;
	pthread_mutex_lock(&movables.lock);
	struct entry *e = find(m.client, m.memory);
	struct entry *reached = e ? NULL : find_reached(m.client, m.memory);
	if (reached)
		reached->fixed = true;
	if (e) {
		movables.serial++; /* a pool may map a segment elsewhere: hami_movable_last() */
		e->mappings++;
		e->fixed = e->fixed || e->mappings > 1 || m.offset || m.count != 1 || m.status;
		e->movable.uvm_fd = uvm_fd;
		e->movable.control_fd = m.control_fd;
		e->movable.base = m.base;
		e->movable.length = m.length;
		if (e->movable.holds == HAMI_HOLDS_POOL)
			e->movable.holds = HAMI_HOLDS_ANYTHING;
		e->movable.gpu = m.gpu[0];
	}
	pthread_mutex_unlock(&movables.lock);
}

void hami_movable_unmapped(uint64_t base, uint64_t length)
{
	pthread_mutex_lock(&movables.lock);
	for (size_t i = 0; i < BUCKETS && movables.count; i++)
		for (struct entry *e = movables.buckets[i]; e; e = e->next)
			if (e->mappings && (e->movable.base - base < length || e->movable.base == base))
				e->mappings--;
	pthread_mutex_unlock(&movables.lock);
}

static uint64_t bytes_of(const struct hami_movable *m)
{
	return m->length ? m->length : m->params.head.size;
}

static bool is_small(const struct hami_movable *m, uint64_t least)
{
	return m->holds == HAMI_HOLDS_ANYTHING && bytes_of(m) < least;
}

/* Returns whether it is mapped whole. libcuda does not ask for whole pages, and maps them. */
static bool is_whole(const struct hami_movable *m)
{
	const uint64_t size = m->params.head.size;
	return m->length == size ||
	       (m->holds != HAMI_HOLDS_ANYTHING && m->length - size < PAGE && m->length % PAGE == 0);
}

struct hami_movable *hami_movable_list(uint64_t least, size_t *count)
{
	*count = 0;
	pthread_mutex_lock(&movables.lock);
	struct hami_movable *list = movables.count ? calloc(movables.count, sizeof *list) : NULL;
	for (size_t i = 0; i < BUCKETS && list; i++)
		for (const struct entry *e = movables.buckets[i]; e; e = e->next)
			if (e->mappings == 1 && !e->fixed && is_whole(&e->movable) &&
			    !is_small(&e->movable, least))
				list[(*count)++] = e->movable;
	pthread_mutex_unlock(&movables.lock);
	return list;
}

void hami_movable_stays(uint64_t least, uint64_t *small, uint64_t *fixed, uint64_t *others)
{
	*small = *fixed = *others = 0;
	pthread_mutex_lock(&movables.lock);
	for (size_t i = 0; i < BUCKETS && movables.count; i++)
		for (const struct entry *e = movables.buckets[i]; e; e = e->next) {
			const struct hami_movable *m = &e->movable;
			uint64_t *sum = is_small(m, least) ? small : e->fixed ? fixed : others;
			*sum += bytes_of(m);
		}
	pthread_mutex_unlock(&movables.lock);
}

bool hami_movable_same(const struct hami_movable *movable)
{
	pthread_mutex_lock(&movables.lock);
	const struct entry *e = find(movable->request.client, movable->request.object);
	bool same = e && e->movable.serial == movable->serial && e->mappings == 1 && !e->fixed &&
		    e->movable.base == movable->base &&
		    e->movable.fabric.request.object == movable->fabric.request.object;
	pthread_mutex_unlock(&movables.lock);
	return same;
}

void hami_movable_forked(void)
{
	hami_lock_renew(&movables.lock);
	if (!movables.tracked)
		return;
	movables.tracked =
		false; /* the parent's objects: their memory is left, as another thread may have held the lock */
	movables.count = 0;
	memset(movables.buckets, 0, sizeof movables.buckets);
}
