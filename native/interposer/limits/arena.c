/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/arena.h"

#include <sys/mman.h>

bool hami_arena_have(struct hami_arena *arena, size_t bytes)
{
	if (arena->room >= bytes)
		return true;
	if (arena->memory)
		munmap(arena->memory, arena->room);
	*arena = (struct hami_arena){0};
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	madvise(memory, bytes, MADV_HUGEPAGE);
	madvise(memory, bytes, MADV_DONTFORK);
	*arena = (struct hami_arena){memory, bytes};
	return true;
}

void hami_arena_give_back(const struct hami_arena *arena)
{
	if (arena->memory)
		madvise(arena->memory, arena->room, MADV_FREE);
}
