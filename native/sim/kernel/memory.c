/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <stdlib.h>

static uint32_t take_memory(struct sim_view *view, uint32_t gpu, uint64_t bytes)
{
	sim_lock(view);
	int rc = sim_charge(view, gpu, bytes);
	sim_unlock(view);
	return rc ? RM_NO_MEMORY : RM_OK;
}

/* From the slot that was charged: another client of this process may have brought another one since. */
void memory_give(struct sim_view *view, const struct memory *memory)
{
	uint32_t slot = view->slot;
	sim_lock(view);
	view->slot = memory->slot;
	if (memory->shared_id)
		sim_shared_leave(view, memory->shared_id);
	else
		sim_uncharge(view, memory->gpu, memory->bytes);
	view->slot = slot;
	sim_unlock(view);
}

uint32_t memory_share(const struct object *o, const struct rm_control *c)
{
	if (!o->memory || c->size != sizeof(uint64_t) || !c->params)
		return RM_INVALID_ARGUMENT;
	o->memory->shared_id = *(const uint64_t *)(uintptr_t)c->params;
	return RM_OK;
}

/* The kernel gives whole pages, large ones for what needs one. */
static uint64_t in_pages(uint64_t bytes)
{
	const uint64_t large = 2ull << 20, page = bytes < large ? 64 << 10 : large;
	return bytes > UINT64_MAX - page ? bytes : (bytes + page - 1) / page * page;
}

/* Of the class that `a` names; the driver's own rules for where it may lie. */
uint32_t memory_allocate(struct sim_view *view, int fd, struct rm_alloc *a)
{
	const struct rm_memory *p = (const struct rm_memory *)(uintptr_t)a->params;
	bool on_host = p && RM_ATTRIBUTE_LOCATION(p->attributes);
	bool is_virtual = p && p->flags & RM_FLAG_VIRTUAL;
	struct object *o;
	if (!p || !p->size || is_virtual != (a->class_id == RM_CLASS_VIRTUAL_MEMORY) ||
	    (!is_virtual && on_host != (a->class_id == RM_CLASS_HOST_MEMORY)))
		return RM_INVALID_ARGUMENT;
	if (!objects_find(a->client, a->parent, fd))
		return RM_INVALID_OBJECT_HANDLE;
	uint32_t status = objects_add(a, fd, 0, &o);
	if (status != RM_OK || a->class_id != RM_CLASS_DEVICE_MEMORY) {
		if (status == RM_OK)
			a->object = o->handle;
		return status;
	}
	const uint64_t bytes = in_pages(p->size);
	status = take_memory(view, o->gpu, bytes);
	if (status == RM_OK && (o->memory = calloc(1, sizeof *o->memory)))
		*o->memory = (struct memory){.bytes = bytes, .gpu = o->gpu, .holders = 1, .slot = view->slot};
	if (status != RM_OK)
		objects_free(o->client, o->handle, fd, NULL);
	else
		a->object = o->handle;
	return status;
}

/* A handle by which other GPUs reach memory, which it holds. */
uint32_t memory_fabric(int fd, struct rm_alloc *a)
{
	const struct rm_fabric *p = (const struct rm_fabric *)(uintptr_t)a->params;
	const struct object *memory = p ? objects_find(a->client, p->memory, fd) : NULL;
	struct object *o;
	if (!p || p->flags || p->reserved || !p->page_bytes || !p->size || p->size % p->page_bytes ||
	    p->alignment % p->page_bytes)
		return RM_INVALID_ARGUMENT;
	if (!memory || memory->class_id != RM_CLASS_DEVICE_MEMORY || !memory->memory)
		return RM_INVALID_OBJECT_HANDLE;
	if (p->offset + p->size > memory->memory->bytes)
		return RM_INVALID_ARGUMENT;
	uint32_t status = objects_add(a, fd, 0, &o);
	if (status != RM_OK)
		return status;
	o->memory = memory->memory;
	o->memory->holders++;
	a->object = o->handle;
	return RM_OK;
}

uint32_t memory_dup(int fd, struct rm_dup *d)
{
	const struct object *from = objects_find_any(d->client_from, d->object_from);
	struct object *o;
	if (!from || !(class_is_memory(from->class_id) || from->class_id == RM_CLASS_GROUP))
		return RM_INVALID_OBJECT_HANDLE;
	const struct rm_alloc a = {
		.client = d->client, .parent = d->parent, .object = d->object, .class_id = from->class_id};
	struct memory *memory = from->memory;
	const uint32_t engine = from->compute ? RM_ENGINE_COMPUTE : RM_ENGINE_COPY, slot = from->slot;
	uint32_t status = objects_add(&a, fd, from->class_id == RM_CLASS_GROUP ? engine : 0, &o);
	if (status != RM_OK)
		return status;
	o->slot = slot; /* the work below a group's second handle is the group's */
	o->memory = memory;
	if (memory)
		memory->holders++;
	d->object = o->handle;
	return RM_OK;
}

/* Does what RM_ALLOC does, for the functions of RM_HEAP that allocate (rmapi_deprecated_vidheapctrl.c). */
uint32_t memory_heap(struct sim_view *view, int fd, struct rm_heap *h)
{
	struct rm_memory p = {0};
	uint32_t *memory;
	switch (h->function) {
	case RM_HEAP_ALLOC_SIZE:
		p.flags = h->data.alloc_size.flags;
		p.attributes = h->data.alloc_size.attributes;
		p.size = h->data.alloc_size.size;
		memory = &h->data.alloc_size.memory;
		break;
	case RM_HEAP_ALLOC_RANGE:
		p.flags = h->data.alloc_range.flags;
		p.attributes = h->data.alloc_range.attributes;
		p.size = h->data.alloc_range.size;
		memory = &h->data.alloc_range.memory;
		break;
	case RM_HEAP_ALLOC_TILED:
		p.flags = h->data.alloc_tiled.flags;
		p.attributes = h->data.alloc_tiled.attributes;
		p.size = (uint64_t)h->data.alloc_tiled.height * (uint32_t)h->data.alloc_tiled.pitch;
		memory = &h->data.alloc_tiled.memory;
		break;
	default:
		return RM_INVALID_ARGUMENT;
	}
	struct rm_alloc a = {.client = h->client,
			     .parent = h->parent,
			     .object = p.flags & RM_FLAG_HANDLE_PROVIDED ? *memory : 0,
			     .class_id = p.flags & RM_FLAG_VIRTUAL             ? RM_CLASS_VIRTUAL_MEMORY
					 : RM_ATTRIBUTE_LOCATION(p.attributes) ? RM_CLASS_HOST_MEMORY
									       : RM_CLASS_DEVICE_MEMORY,
			     .params = (uint64_t)(uintptr_t)&p,
			     .size = sizeof p};
	uint32_t status = memory_allocate(view, fd, &a);
	*memory = a.object;
	return status;
}
