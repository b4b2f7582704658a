/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that never loads libcuda asks for device memory, in the form that its argument names: it ends at
 * the limit, and what is freed, in whatever way, can be had again. Memory of the host and addresses are not
 * counted.
 */
#include "client.h"

#define PIECE (256 * MIB)

typedef uint32_t form_fn(uint64_t bytes, uint32_t attributes, uint32_t flags);

static uint32_t class_of(uint32_t attributes, uint32_t flags)
{
	return flags & RM_FLAG_VIRTUAL          ? RM_CLASS_VIRTUAL_MEMORY
	       : attributes & RM_ATTRIBUTE_HOST ? RM_CLASS_HOST_MEMORY
						: RM_CLASS_DEVICE_MEMORY;
}

static struct rm_alloc alloc_request(struct rm_memory *p, uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	*p = (struct rm_memory){.size = bytes, .attributes = attributes, .flags = flags};
	return (struct rm_alloc){.client = rm.client,
				 .parent = rm.device,
				 .class_id = class_of(attributes, flags),
				 .params = (uint64_t)(uintptr_t)p,
				 .size = sizeof *p};
}

static uint32_t by_alloc(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_memory p;
	struct rm_alloc a = alloc_request(&p, bytes, attributes, flags);
	return ask(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status) ? 0 : a.object;
}

static uint32_t by_transfer(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_memory p;
	struct rm_alloc a = alloc_request(&p, bytes, attributes, flags);
	return ask_inside(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status) ? 0 : a.object;
}

static uint32_t by_short_alloc(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_memory p;
	struct rm_alloc a = alloc_request(&p, bytes, attributes, flags);
	struct rm_alloc_short s = {.client = a.client,
				   .parent = a.parent,
				   .class_id = a.class_id,
				   .params = a.params,
				   .size = a.size};
	return ask(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc_short), &s, &s.status) ? 0 : s.object;
}

static uint32_t below_a_subdevice(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_memory p;
	struct rm_alloc a = alloc_request(&p, bytes, attributes, flags);
	if (a.class_id == RM_CLASS_DEVICE_MEMORY)
		a.parent = rm.subdevice;
	return ask(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status) ? 0 : a.object;
}

static struct rm_heap heap_request(uint32_t function)
{
	return (struct rm_heap){.client = rm.client, .parent = rm.device, .function = function};
}

static uint32_t by_heap_size(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_heap h = heap_request(RM_HEAP_ALLOC_SIZE);
	h.data.alloc_size.size = bytes;
	h.data.alloc_size.attributes = attributes;
	h.data.alloc_size.flags = flags;
	return ask(RM_REQUEST(RM_NR_HEAP, struct rm_heap), &h, &h.status) ? 0 : h.data.alloc_size.memory;
}

static uint32_t by_heap_transfer(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_heap h = heap_request(RM_HEAP_ALLOC_SIZE);
	h.data.alloc_size.size = bytes;
	h.data.alloc_size.attributes = attributes;
	h.data.alloc_size.memory = 0x5d000000u + ++rm.handles;
	h.data.alloc_size.flags = flags | RM_FLAG_HANDLE_PROVIDED;
	return ask_inside(RM_REQUEST(RM_NR_HEAP, struct rm_heap), &h, &h.status) ? 0
										 : h.data.alloc_size.memory;
}

static uint32_t by_heap_range(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_heap h = heap_request(RM_HEAP_ALLOC_RANGE);
	h.data.alloc_range.size = bytes;
	h.data.alloc_range.attributes = attributes;
	h.data.alloc_range.flags = flags;
	return ask(RM_REQUEST(RM_NR_HEAP, struct rm_heap), &h, &h.status) ? 0 : h.data.alloc_range.memory;
}

static uint32_t by_heap_rows(uint64_t bytes, uint32_t attributes, uint32_t flags)
{
	struct rm_heap h = heap_request(RM_HEAP_ALLOC_TILED);
	h.data.alloc_tiled.pitch = 1 << 16;
	h.data.alloc_tiled.height = (uint32_t)(bytes >> 16);
	h.data.alloc_tiled.attributes = attributes;
	h.data.alloc_tiled.flags = flags;
	return ask(RM_REQUEST(RM_NR_HEAP, struct rm_heap), &h, &h.status) ? 0 : h.data.alloc_tiled.memory;
}

static const struct {
	const char *name;
	form_fn *take;
} forms[] = {
	{"alloc", by_alloc},         {"short-alloc", by_short_alloc},
	{"transfer", by_transfer},   {"subdevice", below_a_subdevice},
	{"heap-size", by_heap_size}, {"heap-range", by_heap_range},
	{"heap-rows", by_heap_rows}, {"heap-transfer", by_heap_transfer},
};

static void free_by_heap(uint32_t memory)
{
	struct rm_heap h = heap_request(RM_HEAP_FREE);
	h.data.free.memory = memory;
	CHECK(!ask(RM_REQUEST(RM_NR_HEAP, struct rm_heap), &h, &h.status));
}

static uint32_t pieces[4096];

static size_t take_all(form_fn *take)
{
	size_t count = 0;
	while ((pieces[count] = take(PIECE, 0, 0)))
		count++;
	return count;
}

static void free_all(size_t count, bool by_heap)
{
	for (size_t i = 0; i < count; i++)
		if (by_heap)
			free_by_heap(pieces[i]);
		else
			CHECK(!unmake(pieces[i]));
}

/* A second handle keeps the memory, and its charge, when the first is freed. */
static void a_copy_holds_it_too(form_fn *take, size_t all)
{
	uint32_t first = take(PIECE, 0, 0);
	struct rm_dup d = {
		.client = rm.client, .parent = rm.device, .client_from = rm.client, .object_from = first};
	CHECK(!ask(RM_REQUEST(RM_NR_DUP, struct rm_dup), &d, &d.status));
	CHECK(!unmake(first));
	CHECK(take_all(take) == all - 1);
	free_all(all - 1, false);
	CHECK(!unmake(d.object));
	d.object = 0;
	d.object_from = 12345;
	CHECK(ask(RM_REQUEST(RM_NR_DUP, struct rm_dup), &d, &d.status));
	CHECK(take_all(take) == all);
	free_all(all, true);
}

int main(int argc, char **argv)
{
	size_t fit = limit_bytes() / PIECE;
	form_fn *take = NULL;
	CHECK(argc == 2);
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (!strcmp(forms[i].name, argv[1]))
			take = forms[i].take;
	CHECK(take);
	open_client();
	CHECK(take(64 * limit_bytes(), RM_ATTRIBUTE_HOST, 0));
	CHECK(take(64 * limit_bytes(), 0, RM_FLAG_VIRTUAL));
	CHECK(take_all(take) == fit);
	free_all(fit, false);
	CHECK(take_all(take) == fit);
	free_all(fit, true);
	a_copy_holds_it_too(take, fit);
	/* Memory goes with the device that it is below, and with the client. */
	CHECK(take_all(take) == fit);
	CHECK(!unmake(rm.device));
	make_device();
	CHECK(take_all(take) == fit);
	CHECK(!unmake(rm.client));
	close(rm.fd);
	open_client();
	CHECK(take_all(take) == fit);
	return 0;
}
