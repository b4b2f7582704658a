/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcuda asks for in device memory, and what an interposer can do with it below libcuda: take an object away,
 * and give it back under the same handle and address.
 */
#ifndef SIM_SWAP_H
#define SIM_SWAP_H
#include "../../../../native/include/uvm_abi.h"
#include "watch.h"

struct held {
	struct rm_alloc request;
	struct rm_memory params;
	struct uvm_map_external map; /* the last one; length 0: not mapped */
	int fd, uvm_fd;
};

static struct {
	struct held of[64];
	int count;
	int requests; /* ever seen */
} held;

static inline struct held *held_object(uint32_t handle)
{
	for (int i = 0; i < held.count; i++)
		if (held.of[i].request.object == handle)
			return &held.of[i];
	return NULL;
}

/* What is mapped at the address. */
static inline struct held *held_at(CUdeviceptr address)
{
	for (int i = 0; i < held.count; i++)
		if (address - held.of[i].map.base < held.of[i].map.length)
			return &held.of[i];
	return NULL;
}

static void hold(int fd, unsigned long request, const void *argument)
{
	const struct rm_alloc *a = argument;
	const struct uvm_map_external *m = argument;
	struct held *h;
	held.requests++;
	if (request == RM_REQUEST(RM_NR_ALLOC, struct rm_alloc) && a->status == RM_OK) {
		CHECK(held.count < 64 && !held_object(a->object));
		h = &held.of[held.count++];
		*h = (struct held){.request = *a, .fd = fd};
		memcpy(&h->params, (const void *)(uintptr_t)a->params, sizeof h->params);
	} else if (request == RM_REQUEST(RM_NR_FREE, struct rm_free)) {
		h = held_object(((const struct rm_free *)argument)->object);
		CHECK(h && ((const struct rm_free *)argument)->status == RM_OK);
		*h = held.of[--held.count];
	} else if (request == UVM_MAP_EXTERNAL) {
		CHECK(m->status == RM_OK && m->offset == 0 && (h = held_object(m->memory)));
		h->map = *m;
		h->uvm_fd = fd;
	} else if (request == UVM_UNMAP_EXTERNAL || request == UVM_FREE) {
		h = held_at(((const struct uvm_free *)argument)->base);
		if (h)
			h->map.length = 0;
	}
}

static inline uint32_t unmap_external(const struct held *h, uint64_t base, uint64_t length)
{
	struct uvm_unmap_external u = {.base = base, .length = length};
	memcpy(u.gpu_uuid, h->map.gpu[0].gpu_uuid, sizeof u.gpu_uuid);
	CHECK(forward(h->uvm_fd, UVM_UNMAP_EXTERNAL, &u) == 0);
	return u.status;
}

static inline uint32_t map_external(const struct held *h)
{
	struct uvm_map_external m = h->map;
	CHECK(forward(h->uvm_fd, UVM_MAP_EXTERNAL, &m) == 0);
	return m.status;
}

static inline uint32_t free_object(const struct held *h)
{
	struct rm_free f = {
		.client = h->request.client, .parent = h->request.parent, .object = h->request.object};
	CHECK(forward(h->fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f) == 0);
	return f.status;
}

static inline uint32_t allocate_object(struct held *h)
{
	struct rm_alloc a = h->request;
	a.params = (uint64_t)(uintptr_t)&h->params;
	CHECK(forward(h->fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) == 0);
	CHECK(a.status != RM_OK || a.object == h->request.object);
	return a.status;
}

static inline void take_away(const struct held *h)
{
	CHECK(h->map.length == 0 || unmap_external(h, h->map.base, h->map.length) == RM_OK);
	CHECK(free_object(h) == RM_OK);
}

static inline void give_back(struct held *h)
{
	CHECK(allocate_object(h) == RM_OK);
	CHECK(h->map.length == 0 || map_external(h) == RM_OK);
}

/* What of the GPU's memory is in use. */
static inline size_t used_bytes(void)
{
	return (size_t)state_number("used_bytes");
}

#endif
