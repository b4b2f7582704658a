/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/rm_forms.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "rm_abi.h"

#define HUGE_BYTES (2ull << 20)

/*
 * Every form in which device memory is asked for, and where each has its fields: a class of RM_NR_ALLOC in
 * that class's parameters, a function of RM_NR_HEAP in the request itself. What is not here gives a user's
 * process no device memory (open kernel modules 595): RM_ALLOC_MEMORY (0x27) of class 0x40 and all classes of
 * physical memory and page lists are privileged, 0x3e and 0x71 are the host's memory, 0x50a0 and 0x70 are
 * addresses.
 */
static const struct form {
	uint32_t number, selector;
	size_t size; /* where the u64 of bytes is */
	size_t rows; /* or, with size 0, where u32 rows and u32 bytes a row are, side by side */
	size_t flags, attributes;
	size_t object; /* RM_NR_HEAP: where the handle is */
} forms[] = {
	{RM_NR_ALLOC, RM_CLASS_DEVICE_MEMORY, .size = offsetof(struct rm_memory, size),
	 .flags = offsetof(struct rm_memory, flags), .attributes = offsetof(struct rm_memory, attributes)},
	{RM_NR_HEAP, RM_HEAP_ALLOC_SIZE, .size = offsetof(struct rm_heap, data.alloc_size.size),
	 .flags = offsetof(struct rm_heap, data.alloc_size.flags),
	 .attributes = offsetof(struct rm_heap, data.alloc_size.attributes),
	 .object = offsetof(struct rm_heap, data.alloc_size.memory)},
	{RM_NR_HEAP, RM_HEAP_ALLOC_RANGE, .size = offsetof(struct rm_heap, data.alloc_range.size),
	 .flags = offsetof(struct rm_heap, data.alloc_range.flags),
	 .attributes = offsetof(struct rm_heap, data.alloc_range.attributes),
	 .object = offsetof(struct rm_heap, data.alloc_range.memory)},
	{RM_NR_HEAP, RM_HEAP_ALLOC_TILED, .rows = offsetof(struct rm_heap, data.alloc_tiled.height),
	 .flags = offsetof(struct rm_heap, data.alloc_tiled.flags),
	 .attributes = offsetof(struct rm_heap, data.alloc_tiled.attributes),
	 .object = offsetof(struct rm_heap, data.alloc_tiled.memory)},
};
_Static_assert(offsetof(struct rm_heap, data.alloc_tiled.pitch) ==
		       offsetof(struct rm_heap, data.alloc_tiled.height) + 4,
	       "rows and bytes a row are side by side");

bool hami_rm_copy(void *out, const void *from, size_t size)
{
	struct iovec to = {out, size}, there = {(void *)(uintptr_t)from, size};
	return process_vm_readv(getpid(), &to, 1, &there, 1, 0) == (ssize_t)size;
}

static const struct form *find_form(uint32_t number, uint32_t selector)
{
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (forms[i].number == number && forms[i].selector == selector)
			return &forms[i];
	return NULL;
}

static uint32_t word(const void *base, size_t at)
{
	uint32_t value;
	memcpy(&value, (const char *)base + at, sizeof value);
	return value;
}

/*
 * Returns the page size of a request. An odd size takes whole pages, as NVML's figure for the process shows.
 */
static uint64_t page_bytes(uint32_t attributes, uint64_t bytes)
{
	switch (RM_ATTRIBUTE_PAGE(attributes)) {
	case RM_PAGE_4K:
		return 4096;
	case RM_PAGE_64K:
		return 65536;
	case RM_PAGE_DEFAULT:
		return bytes < HUGE_BYTES ? 65536 : HUGE_BYTES;
	default:
		return HUGE_BYTES;
	}
}

/* Returns the bytes of device memory that a request of this form asks for, in whole pages. */
static uint64_t bytes_of(const struct form *form, const void *fields)
{
	uint64_t bytes;
	if (word(fields, form->flags) & RM_FLAG_VIRTUAL ||
	    RM_ATTRIBUTE_LOCATION(word(fields, form->attributes)) != RM_LOCATION_DEVICE)
		return 0;
	if (form->size)
		memcpy(&bytes, (const char *)fields + form->size, sizeof bytes);
	else
		bytes = (uint64_t)word(fields, form->rows) * word(fields, form->rows + 4);
	uint64_t page = page_bytes(word(fields, form->attributes), bytes);
	return bytes > UINT64_MAX - page ? UINT64_MAX : (bytes + page - 1) & ~(page - 1);
}

static struct hami_rm_request read_alloc(struct rm_alloc *a, bool is_long)
{
	struct hami_rm_request r = {.kind = a->class_id == RM_CLASS_FABRIC ? HAMI_RM_FABRIC : HAMI_RM_MAKE,
				    .client = a->client,
				    .parent = a->parent,
				    .class_id = a->class_id,
				    .object = &a->object,
				    .status = is_long ? &a->status
						      : &((struct rm_alloc_short *)(void *)a)->status};
	const void *params = (const void *)(uintptr_t)a->params;
	bool serialized = is_long && a->flags & RM_ALLOC_SERIALIZED;
	const struct form *form = find_form(RM_NR_ALLOC, a->class_id);
	if (form && params)
		r.bytes = serialized ? UINT64_MAX : bytes_of(form, params);
	if (a->class_id == RM_CLASS_FABRIC && !serialized)
		r.argument = params;
	if (a->class_id == RM_CLASS_GROUP && params && !serialized)
		r.engine = word(params, offsetof(struct rm_group, engine));
	if (a->class_id == RM_CLASS_DEVICE)
		r.instance = serialized ? UINT32_MAX
			     : params   ? word(params, offsetof(struct rm_device, instance))
					: 0;
	return r;
}

static struct hami_rm_request read_heap(struct rm_heap *h)
{
	struct hami_rm_request r = {.client = h->client, .parent = h->parent, .status = &h->status};
	const struct form *form = find_form(RM_NR_HEAP, h->function);
	if (form) {
		r.kind = HAMI_RM_MAKE;
		r.class_id = RM_CLASS_DEVICE_MEMORY;
		r.bytes = bytes_of(form, h);
		r.object = (uint32_t *)(void *)((char *)h + form->object);
	} else if (h->function == RM_HEAP_FREE || h->function == RM_HEAP_HW_FREE) {
		r.kind = HAMI_RM_UNMAKE;
		r.object = h->function == RM_HEAP_FREE ? &h->data.free.memory : &h->data.hw_free.memory;
	}
	return r;
}

static struct hami_rm_request read_plain(uint32_t number, size_t size, void *argument)
{
	struct rm_free *f = argument;
	struct rm_control *c = argument;
	struct rm_dup *d = argument;
	struct rm_map *m = argument;
	struct rm_map_dma *dma = argument;
	if (number == RM_NR_ALLOC &&
	    (size == sizeof(struct rm_alloc) || size == sizeof(struct rm_alloc_short)))
		return read_alloc(argument, size == sizeof(struct rm_alloc));
	if (number == RM_NR_CONTROL && size == sizeof *c)
		return (struct hami_rm_request){HAMI_RM_CONTROL, .argument = c, .status = &c->status};
	if (number == RM_NR_FREE && size == sizeof *f)
		return (struct hami_rm_request){HAMI_RM_UNMAKE, .client = f->client, .object = &f->object,
						.status = &f->status};
	if (number == RM_NR_DUP && size == sizeof *d)
		return (struct hami_rm_request){HAMI_RM_DUP,         .client = d->client,
						.parent = d->parent, .object = &d->object,
						.argument = d,       .status = &d->status};
	if (number == RM_NR_HEAP && size >= RM_HEAP_HEAD_BYTES)
		return read_heap(argument);
	if (number == RM_NR_MAP && size == sizeof *m)
		return (struct hami_rm_request){HAMI_RM_MAP, .client = m->client, .object = &m->memory};
	if (number == RM_NR_MAP_DMA && size >= sizeof *dma)
		return (struct hami_rm_request){HAMI_RM_MAP, .client = dma->client, .object = &dma->memory};
	return (struct hami_rm_request){HAMI_RM_OTHER};
}

struct hami_rm_request hami_rm_read(unsigned long number, void *argument)
{
	uint32_t plain = _IOC_NR(number);
	size_t size = _IOC_SIZE(number);
	if (plain == RM_NR_TRANSFER && size == sizeof(struct rm_transfer)) {
		const struct rm_transfer *t = argument;
		plain = t->number;
		size = t->size;
		argument = (void *)(uintptr_t)t->argument;
		if (!argument)
			return (struct hami_rm_request){HAMI_RM_OTHER};
	}
	return read_plain(plain, size, argument);
}
