/* SPDX-License-Identifier: Apache-2.0 */
/* Address space: regions, the frame table, and spare regions that save the system calls. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	FRAME_SHIFT = 21,
	LEAF_BITS = 13,
	LEAF_SIZE = 1 << LEAF_BITS,
	ROOT_SIZE = 1 << (47 - FRAME_SHIFT - LEAF_BITS),
	SPARES_MAX = 32,
};

static struct {
	struct region **root[ROOT_SIZE];
	struct region *spares; /* newest first */
	unsigned spare_count;
} space;

static struct region **frame_slot(uintptr_t address, bool create)
{
	uintptr_t frame = address >> FRAME_SHIFT;
	uintptr_t leaf = frame >> LEAF_BITS;
	if (leaf >= ROOT_SIZE)
		return NULL;
	if (!space.root[leaf]) {
		if (!create)
			return NULL;
		space.root[leaf] = calloc(LEAF_SIZE, sizeof *space.root[leaf]);
		if (!space.root[leaf])
			return NULL;
	}
	return &space.root[leaf][frame & (LEAF_SIZE - 1)];
}

static bool set_frames(uintptr_t base, size_t bytes, struct region *region)
{
	for (size_t at = 0; at < bytes; at += FRAME_BYTES) {
		struct region **slot = frame_slot(base + at, region != NULL);
		if (!slot)
			return false;
		*slot = region;
	}
	return true;
}

/* More than is needed, and the ends cut off, so that it starts at a frame. */
static uintptr_t map_aligned(size_t bytes, int protection)
{
	char *p = mmap(NULL, bytes + FRAME_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		       0);
	if (p == MAP_FAILED)
		return 0;
	uintptr_t start = (uintptr_t)p;
	uintptr_t base = round_up(start, FRAME_BYTES);
	if (base > start)
		munmap(p, base - start);
	munmap(p + (base - start) + bytes, start + FRAME_BYTES - base);
	madvise((void *)base, bytes, MADV_HUGEPAGE); /* most of the time of a copy is page faults else */
	return base;
}

static void unlink_spare(struct region *r)
{
	if (r->prev)
		r->prev->next = r->next;
	else
		space.spares = r->next;
	if (r->next)
		r->next->prev = r->prev;
	space.spare_count--;
}

static void destroy(struct region *r)
{
	set_frames(r->base, r->bytes, NULL);
	munmap((void *)r->base, r->bytes);
	free(r);
}

struct region *region_take(size_t bytes, int protection)
{
	if (protection == (PROT_READ | PROT_WRITE))
		for (struct region *r = space.spares; r; r = r->next)
			if (r->bytes == bytes) {
				unlink_spare(r);
				*r = (struct region){
					.base = r->base, .bytes = r->bytes, .buffer_id = ++sim.next_id};
				return r;
			}
	struct region *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->bytes = bytes;
	r->base = map_aligned(bytes, protection);
	r->buffer_id = ++sim.next_id;
	if (r->base && set_frames(r->base, bytes, r))
		return r;
	if (r->base)
		destroy(r);
	else
		free(r);
	return NULL;
}

void region_give(struct region *r)
{
	bool plain = r->kind == REGION_DEVICE || r->kind == REGION_BLOCK;
	if (!plain || r->shared_mapped) {
		destroy(r);
		return;
	}
	if (r->touched)
		madvise((void *)r->base, r->bytes, MADV_DONTNEED);
	if (space.spare_count == SPARES_MAX) {
		struct region *oldest = space.spares;
		while (oldest->next)
			oldest = oldest->next;
		unlink_spare(oldest);
		destroy(oldest);
	}
	r->heap = NULL; /* region_find no longer knows it */
	r->prev = NULL;
	r->next = space.spares;
	if (space.spares)
		space.spares->prev = r;
	space.spares = r;
	space.spare_count++;
}

bool region_map(struct region *r)
{
	size_t bytes = r->memory.bytes < r->bytes ? r->memory.bytes : r->bytes;
	return !r->memory.object ||
	       (sim_range_make(r->base, r->bytes) && sim_memory_map(&r->memory, r->base, bytes));
}

void region_unmap(struct region *r)
{
	if (r->memory.object)
		sim_range_free(r->base, r->bytes);
}

struct region *region_find(uintptr_t address)
{
	struct region **slot = frame_slot(address, false);
	struct region *r = slot ? *slot : NULL;
	bool spare = r && (r->kind == REGION_DEVICE || r->kind == REGION_BLOCK) && !r->heap;
	return spare ? NULL : r;
}

void sim_memory_fork_child(void)
{
	memset(&space, 0, sizeof space);
}
