/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/map.h"
#include "limits/host_room.h"
#include "limits/swap_file.h"

/* Ends the page-locks, as far as the driver does. It says so of each: one may have gone with the context in which it was. */
static void unpin(struct hami_arena *arena, const struct real_cuda *real)
{
	for (; arena->pinned; arena->pinned -= HAMI_ARENA_PIECE) {
		const CUresult result =
			real->cuMemHostUnregister(arena->memory + arena->pinned - HAMI_ARENA_PIECE);
		if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED &&
		    result != CUDA_ERROR_INVALID_VALUE)
			return;
	}
}

static bool is_registered(const struct hami_arena *arena, const struct real_cuda *real)
{
	unsigned int type = 0;
	const CUdeviceptr address = (CUdeviceptr)(uintptr_t)arena->memory;
	return real->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
		       CUDA_SUCCESS &&
	       type == CU_MEMORYTYPE_HOST;
}

static size_t whole_pieces(size_t bytes)
{
	return bytes / HAMI_ARENA_PIECE * HAMI_ARENA_PIECE;
}

void hami_arena_begin(void)
{
	hami_swap_file_begin();
}

static void *map_memory(size_t room)
{
	void *memory = hami_map(room, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (memory)
		madvise(memory, room, MADV_HUGEPAGE);
	return memory;
}

static bool map(struct hami_arena *arena, size_t room)
{
	const bool is_file = hami_swap_file_wanted();
	void *memory = is_file ? hami_swap_file_map(room) : map_memory(room);
	if (!memory)
		return false;
	madvise(memory, room, MADV_DONTFORK);
	madvise(memory, room, MADV_DONTDUMP);
	*arena = (struct hami_arena){.memory = memory, .room = room, .is_file = is_file};
	return true;
}

uint64_t hami_arena_room(const struct hami_arena *arena)
{
	return hami_swap_file_wanted() ? hami_swap_file_room() : hami_host_room() + arena->pinned;
}

bool hami_arena_read(const struct hami_arena *arena, void *to, const char *from, size_t bytes)
{
	if (arena->is_file)
		return hami_swap_file_read(to, from, bytes);
	memcpy(to, from, bytes);
	return true;
}

bool hami_arena_write(const struct hami_arena *arena, char *to, const void *from, size_t bytes)
{
	if (arena->is_file)
		return hami_swap_file_write(to, from, bytes);
	memcpy(to, from, bytes);
	return true;
}

bool hami_arena_intact(const struct hami_arena *arena)
{
	return !arena->is_file || hami_swap_file_intact(arena->memory);
}

bool hami_arena_have(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t bytes)
{
	CUcontext before;
	if (arena->pinned && real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		if (arena->room < bytes || !is_registered(arena, real))
			unpin(arena, real);
		real->cuCtxPopCurrent_v2(&before);
	}
	if (arena->room >= bytes)
		return true;
	if (arena->pinned)
		return false; /* the driver would go on copying to pages that are nobody's */
	if (arena->memory)
		munmap(arena->memory, arena->room);
	*arena = (struct hami_arena){0};
	const size_t exact = whole_pieces(bytes + HAMI_ARENA_PIECE - 1),
		     ample = whole_pieces(bytes / 2) + exact;
	return (!hami_swap_file_wanted() && map(arena, ample)) || map(arena, exact);
}

void hami_arena_pin(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t used,
		    size_t bound)
{
	CUcontext before;
	const size_t pieces = whole_pieces(used + HAMI_ARENA_PIECE - 1);
	const size_t most = whole_pieces(bound < pieces ? bound : pieces);
	if (arena->is_file || arena->pinned >= most || !real->cuMemHostRegister_v2 ||
	    !real->cuMemHostUnregister || !real->cuPointerGetAttribute ||
	    real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return;
	while (arena->pinned < most &&
	       real->cuMemHostRegister_v2(arena->memory + arena->pinned, HAMI_ARENA_PIECE, 0) == CUDA_SUCCESS)
		arena->pinned += HAMI_ARENA_PIECE;
	real->cuCtxPopCurrent_v2(&before);
}

void hami_arena_give_back(struct hami_arena *arena)
{
	if (arena->is_file) {
		munmap(arena->memory, arena->room); /* and so the file's blocks */
		*arena = (struct hami_arena){0};
	}
	if (arena->room > arena->pinned)
		madvise(arena->memory + arena->pinned, arena->room - arena->pinned, MADV_FREE);
}
