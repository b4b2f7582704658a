/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include <stdlib.h>

static void list_add(struct region **head, struct region *r)
{
	r->prev = NULL;
	r->next = *head;
	if (*head)
		(*head)->prev = r;
	*head = r;
}

static void list_remove(struct region **head, struct region *r)
{
	if (r->prev)
		r->prev->next = r->next;
	else
		*head = r->next;
	if (r->next)
		r->next->prev = r->prev;
	r->next = r->prev = NULL;
}

static void count_used(struct heap *h, uint64_t bytes)
{
	h->used += bytes;
	if (h->used > h->used_high)
		h->used_high = h->used;
}

static void shrink(struct heap *h, struct region *r)
{
	h->reserved -= r->bytes;
	free(r->used);
	free(r->length);
	r->used = NULL;
	r->length = NULL;
	region_unmap(r);
	sim_memory_give(&r->memory, r->shared_id);
	region_give(r);
}

/* A region with memory. */
static CUresult grow(struct heap *h, size_t bytes, size_t asked, enum region_kind kind, struct region **out)
{
	enum memory_use use = h->managed ? MEMORY_MANAGED : MEMORY_PROGRAM;
	struct device_memory memory;
	CUresult result = sim_memory_take_pages(&memory, h->device, bytes, asked, use);
	if (result != CUDA_SUCCESS && h->keep && h->reserved > h->used) {
		heap_trim(h, 0);
		result = sim_memory_take_pages(&memory, h->device, bytes, asked, use);
	}
	SIM_CHECK(result);
	struct region *r = region_take(bytes, PROT_READ | PROT_WRITE);
	if (!r) {
		sim_memory_give(&memory, 0);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->memory = memory;
	r->managed = h->managed;
	r->kind = kind;
	r->heap = h;
	r->device = h->device;
	r->context = h->context;
	r->size = bytes;
	h->reserved += bytes;
	if (h->reserved > h->reserved_high)
		h->reserved_high = h->reserved;
	*out = r;
	if (region_map(r))
		return CUDA_SUCCESS;
	shrink(h, r);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The first run of n free granules, or UINT32_MAX. */
static uint32_t find_run(const struct region *block, uint32_t n)
{
	uint32_t run = 0;
	for (uint32_t i = 0; i < block->granules;) {
		uint64_t word = block->used[i / 64];
		if (i % 64 == 0 && word == UINT64_MAX) {
			run = 0;
			i += 64;
		} else if (i % 64 == 0 && word == 0 && run + 64 < n) {
			run += 64;
			i += 64;
		} else {
			run = word >> (i % 64) & 1 ? 0 : run + 1;
			i++;
			if (run == n)
				return i - n;
		}
	}
	return UINT32_MAX;
}

static void mark(struct region *block, uint32_t first, uint32_t n, bool taken)
{
	for (uint32_t i = first; i < first + n;) {
		uint32_t bits = 64 - i % 64 < first + n - i ? 64 - i % 64 : first + n - i;
		uint64_t mask = (bits == 64 ? UINT64_MAX : (1ull << bits) - 1) << (i % 64);
		block->used[i / 64] = taken ? block->used[i / 64] | mask : block->used[i / 64] & ~mask;
		i += bits;
	}
	block->length[first] = taken ? n : 0;
	block->free_granules = taken ? block->free_granules - n : block->free_granules + n;
}

static CUresult make_block(struct heap *h, struct region **out)
{
	SIM_CHECK(grow(h, h->block_bytes, h->block_bytes, REGION_BLOCK, out));
	struct region *r = *out;
	r->granules = r->free_granules = (uint32_t)(h->block_bytes / GRANULE_BYTES);
	r->used = calloc(r->granules / 64, sizeof *r->used);
	r->length = calloc(r->granules, sizeof *r->length);
	if (!r->used || !r->length) {
		shrink(h, r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	list_add(&h->blocks, r);
	return CUDA_SUCCESS;
}

static CUresult alloc_piece(struct heap *h, size_t size, CUdeviceptr *out)
{
	uint32_t n = (uint32_t)(round_up(size, GRANULE_BYTES) / GRANULE_BYTES);
	uint32_t at = UINT32_MAX;
	struct region *block;
	for (block = h->blocks; block; block = block->next) {
		at = block->free_granules < n ? UINT32_MAX : find_run(block, n);
		if (at != UINT32_MAX)
			break;
	}
	if (!block) {
		SIM_CHECK(make_block(h, &block));
		at = 0;
	}
	mark(block, at, n, true);
	count_used(h, n * GRANULE_BYTES);
	*out = block->base + at * GRANULE_BYTES;
	return CUDA_SUCCESS;
}

static CUresult alloc_whole(struct heap *h, size_t size, CUdeviceptr *out)
{
	size_t bytes = round_up(size, FRAME_BYTES);
	struct region *r = h->idle;
	while (r && r->bytes != bytes)
		r = r->next;
	if (r)
		list_remove(&h->idle, r);
	else
		SIM_CHECK(grow(h, bytes, h->keep || size < FRAME_BYTES ? bytes : size, REGION_DEVICE, &r));
	r->size = size;
	list_add(&h->whole, r);
	count_used(h, bytes);
	*out = r->base;
	return CUDA_SUCCESS;
}

CUresult heap_alloc_whole(struct heap *h, size_t size, CUdeviceptr *out)
{
	struct device_memory memory;
	if (size > sim_cuda_total(&sim.view.machine.gpu[h->device]))
		return sim_memory_take(&memory, h->device, size,
				       MEMORY_PROGRAM); /* refused, before rounding it up can overflow */
	return alloc_whole(h, size, out);
}

CUresult heap_alloc(struct heap *h, size_t size, CUdeviceptr *out)
{
	return size <= h->block_bytes / 2 ? alloc_piece(h, size, out) : heap_alloc_whole(h, size, out);
}

static CUresult free_piece(struct region *block, CUdeviceptr address)
{
	uint32_t at = (uint32_t)((address - block->base) / GRANULE_BYTES);
	if (address % GRANULE_BYTES || !block->length[at])
		return CUDA_ERROR_INVALID_VALUE;
	struct heap *h = block->heap;
	h->used -= block->length[at] * GRANULE_BYTES;
	mark(block, at, block->length[at], false);
	if (block->free_granules == block->granules && !h->keep) {
		list_remove(&h->blocks, block);
		shrink(h, block);
	}
	return CUDA_SUCCESS;
}

CUresult heap_free(CUdeviceptr address)
{
	struct region *r = region_find((uintptr_t)address);
	if (r && r->kind == REGION_BLOCK)
		return free_piece(r, address);
	if (r && r->kind == REGION_GRAPH && r->base == address)
		return graph_memory_free(graph_memory_find(address));
	if (!r || r->kind != REGION_DEVICE || r->base != address)
		return CUDA_ERROR_INVALID_VALUE;
	struct heap *h = r->heap;
	for (struct region *idle = h->keep ? h->idle : NULL; idle; idle = idle->next)
		if (idle == r)
			return CUDA_ERROR_INVALID_VALUE; /* freed before, and still the pool's */
	list_remove(&h->whole, r);
	h->used -= r->bytes;
	if (h->keep && !r->shared_id)
		list_add(&h->idle, r);
	else
		shrink(h, r);
	return CUDA_SUCCESS;
}

CUresult heap_range(CUdeviceptr address, uintptr_t *base, size_t *size, struct region **region)
{
	struct region *r = region_find((uintptr_t)address);
	if (!r || r->kind == REGION_HOST || r->kind == REGION_CONTEXT || (r->heap && r->heap->opaque))
		return CUDA_ERROR_NOT_FOUND;
	*region = r;
	*base = r->base;
	*size = r->size;
	if (r->kind != REGION_BLOCK)
		return CUDA_SUCCESS;
	uint32_t at = (uint32_t)((address - r->base) / GRANULE_BYTES);
	if (!(r->used[at / 64] >> (at % 64) & 1))
		return CUDA_ERROR_NOT_FOUND;
	while (!r->length[at])
		at--;
	*base = r->base + at * GRANULE_BYTES;
	*size = r->length[at] * GRANULE_BYTES;
	return CUDA_SUCCESS;
}

void heap_trim(struct heap *h, uint64_t keep_bytes)
{
	while (h->idle && h->reserved > keep_bytes) {
		struct region *r = h->idle;
		list_remove(&h->idle, r);
		shrink(h, r);
	}
	for (struct region *r = h->blocks, *next; r && h->reserved > keep_bytes; r = next) {
		next = r->next;
		if (r->free_granules == r->granules) {
			list_remove(&h->blocks, r);
			shrink(h, r);
		}
	}
}

void heap_destroy(struct heap *h)
{
	struct region **lists[] = {&h->blocks, &h->whole, &h->idle};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		while (*lists[i]) {
			struct region *r = *lists[i];
			list_remove(lists[i], r);
			shrink(h, r);
		}
	h->used = 0;
}
