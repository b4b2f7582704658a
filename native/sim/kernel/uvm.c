/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses, and the places in them where objects are mapped: two trees, ordered by address. */
#include "uvm.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct span {
	uint64_t base, length;
};

struct range {
	struct span at; /* first, as in struct place: by_address */
	int fd;         /* through which it was made: another open of the file knows nothing of it */
};

/* Where an object was mapped last. It stays when the mapping goes, until the range goes or another takes the place. */
struct place {
	struct span at;
	uint32_t client, object;
	uint32_t gpus;         /* bit: that GPU maps it; 0: nobody can touch the pages */
	struct memory *memory; /* NULL: freed */
	struct place *next;    /* of the same memory */
};

static struct {
	void *ranges, *places;
} uvm;

bool uvm_is_request(unsigned long request)
{
	return request == UVM_MAP_EXTERNAL || request == UVM_FREE || request == UVM_UNMAP_EXTERNAL ||
	       request == UVM_CREATE_EXTERNAL_RANGE;
}

/* Equal is whatever overlaps. */
static int by_address(const void *a, const void *b)
{
	const struct span *x = a, *y = b;
	return x->base + x->length <= y->base ? -1 : y->base + y->length <= x->base ? 1 : 0;
}

static void *find(void *const *tree, uint64_t base, uint64_t length)
{
	const struct span key = {base, length};
	void *const *node = tfind(&key, tree, by_address);
	return node ? *node : NULL;
}

static bool aligned(uint64_t base, uint64_t length)
{
	return length && !(base % PAGE) && !(length % PAGE) && base + length > base;
}

/* The range that holds all of it. */
static struct range *range_of(int fd, uint64_t base, uint64_t length)
{
	if (!aligned(base, length))
		return NULL;
	struct range *r = find(&uvm.ranges, base, 1);
	return r && r->fd == fd && base + length <= r->at.base + r->at.length ? r : NULL;
}

/* Calls act for each place that overlaps [base, end); act may remove it. */
static void each_place(uint64_t base, uint64_t end, void (*act)(struct place *place, const void *argument),
		       const void *argument)
{
	while (base < end) {
		struct place *p = find(&uvm.places, base, end - base);
		if (!p)
			return;
		each_place(base, p->at.base, act, argument);
		base = p->at.base + p->at.length;
		act(p, argument);
	}
}

/* A place that lies in [base, end) only in part cannot be unmapped there. */
static bool cuts_a_place(uint64_t base, uint64_t end)
{
	const struct place *first = find(&uvm.places, base, 1), *last = find(&uvm.places, end - 1, 1);
	return (first && first->gpus && first->at.base < base) ||
	       (last && last->gpus && last->at.base + last->at.length > end);
}

/* From GPUs, a word of bits. */
static void unmap(struct place *p, const void *gpus)
{
	bool mapped = p->gpus;
	p->gpus &= ~*(const uint32_t *)gpus;
	if (mapped && !p->gpus)
		mprotect((void *)(uintptr_t)p->at.base, p->at.length, PROT_NONE);
}

static void leave_memory(struct place *p)
{
	for (struct place **at = p->memory ? &p->memory->places : NULL; at && *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	p->memory = NULL;
}

/* Nobody can read the old bytes again; those that another process has too stay with it. */
static void drop_pages(const struct place *p, bool shared)
{
	void *pages = (void *)(uintptr_t)p->at.base;
	if (shared) {
		mmap(pages, p->at.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		     -1, 0);
		return;
	}
	mprotect(pages, p->at.length, PROT_READ | PROT_WRITE);
	if (madvise(pages, p->at.length, MADV_REMOVE) !=
	    0) /* of a file; else they are this process's alone */
		madvise(pages, p->at.length, MADV_DONTNEED);
	mprotect(pages, p->at.length, PROT_NONE);
}

/*
 * The addresses are the program's again, as they were before anything was mapped there. Where other memory than this
 * object's was, if there is one, its bytes are not to be read in the object.
 */
static void remove_place(struct place *p, const void *memory)
{
	if (memory && p->memory && p->memory != memory)
		drop_pages(p, p->memory->shared_id != 0);
	if (!p->gpus)
		mprotect((void *)(uintptr_t)p->at.base, p->at.length, PROT_READ | PROT_WRITE);
	leave_memory(p);
	tdelete(p, &uvm.places, by_address);
	free(p);
}

void uvm_object_freed(const struct object *o, bool last)
{
	const uint32_t all = UINT32_MAX;
	for (struct place *p = o->memory ? o->memory->places : NULL, *next; p; p = next) {
		next = p->next;
		if (p->client == o->client && p->object == o->handle)
			unmap(p, &all);
		if (!last)
			continue;
		drop_pages(p, o->memory->shared_id != 0);
		p->memory = NULL;
		p->next = NULL;
	}
}

static uint32_t create_range(int fd, const struct uvm_create_range *c)
{
	if (!aligned(c->base, c->length))
		return UVM_INVALID_ADDRESS;
	if (find(&uvm.ranges, c->base, c->length))
		return UVM_ADDRESS_IN_USE;
	struct range *r = malloc(sizeof *r);
	if (r)
		*r = (struct range){{c->base, c->length}, fd};
	if (r && tsearch(r, &uvm.ranges, by_address))
		return RM_OK;
	free(r);
	return RM_NO_MEMORY;
}

static uint32_t free_range(int fd, const struct uvm_free *f)
{
	struct range *r = range_of(fd, f->base, f->length);
	if (!r || r->at.base != f->base || r->at.length != f->length)
		return UVM_INVALID_ADDRESS;
	each_place(r->at.base, r->at.base + r->at.length, remove_place, NULL);
	tdelete(r, &uvm.ranges, by_address);
	free(r);
	return RM_OK;
}

/* The GPU's bit, or 0. */
static uint32_t gpu_bit(const struct sim_view *view, const uint8_t uuid[16])
{
	uint8_t own[16];
	for (uint32_t gpu = 0; gpu < view->machine.gpu_count; gpu++) {
		sim_uuid_bytes(&view->machine.gpu[gpu], own);
		if (memcmp(uuid, own, sizeof own) == 0)
			return 1u << gpu;
	}
	return 0;
}

static uint32_t unmap_external(const struct sim_view *view, int fd, const struct uvm_unmap_external *u)
{
	uint32_t gpu = gpu_bit(view, u->gpu_uuid);
	if (!range_of(fd, u->base, u->length))
		return UVM_INVALID_ADDRESS;
	if (!gpu)
		return UVM_INVALID_DEVICE;
	if (cuts_a_place(u->base, u->base + u->length))
		return RM_NOT_SUPPORTED;
	each_place(u->base, u->base + u->length, unmap, &gpu);
	return RM_OK;
}

/* A mapped place, instead of all that were there. */
static uint32_t put_place(const struct uvm_map_external *m, struct memory *memory, uint32_t gpus)
{
	struct place *p = malloc(sizeof *p);
	if (!p)
		return RM_NO_MEMORY;
	each_place(m->base, m->base + m->length, remove_place, memory);
	*p = (struct place){{m->base, m->length}, m->client, m->memory, gpus, memory, memory->places};
	if (!tsearch(p, &uvm.places, by_address)) {
		free(p);
		return RM_NO_MEMORY;
	}
	memory->places = p;
	return RM_OK;
}

/* In NVIDIA's order: what was mapped there goes before the object is looked for. */
static uint32_t map_external(const struct sim_view *view, int fd, const struct uvm_map_external *m)
{
	uint32_t gpus = 0;
	if (!aligned(m->base, m->length))
		return UVM_INVALID_ADDRESS;
	if (!m->count || m->count > UVM_MAX_GPUS)
		return RM_INVALID_ARGUMENT;
	if (!range_of(fd, m->base, m->length))
		return UVM_INVALID_ADDRESS;
	for (uint64_t i = 0; i < m->count; i++) {
		uint32_t gpu = gpu_bit(view, m->gpu[i].gpu_uuid);
		if (!gpu)
			return UVM_INVALID_DEVICE;
		gpus |= gpu;
	}
	if (cuts_a_place(m->base, m->base + m->length))
		return RM_NOT_SUPPORTED;
	each_place(m->base, m->base + m->length, unmap, &gpus);
	const struct object *o = objects_find(m->client, m->memory, m->control_fd);
	if (!o || !o->memory)
		return RM_OBJECT_NOT_FOUND;
	if (m->offset % PAGE || m->offset > o->memory->bytes || m->length > o->memory->bytes - m->offset)
		return UVM_INVALID_OFFSET;
	return put_place(m, o->memory, gpus);
}

void uvm_answer(struct sim_view *view, int fd, unsigned long request, void *argument)
{
	struct uvm_map_external *m = argument;
	struct uvm_unmap_external *u = argument;
	struct uvm_free *f = argument;
	struct uvm_create_range *c = argument;
	if (request == UVM_MAP_EXTERNAL)
		m->status = map_external(view, fd, m);
	else if (request == UVM_UNMAP_EXTERNAL)
		u->status = unmap_external(view, fd, u);
	else if (request == UVM_FREE)
		f->status = free_range(fd, f);
	else
		c->status = create_range(fd, c);
}

/* In a forked child: nothing is mapped there. */
void uvm_forget(void)
{
	uvm.ranges = uvm.places = NULL;
}
