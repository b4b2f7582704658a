/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host for what is moved off the GPU, or a file without a name (limits/swap_file.h). Memory is
 * kept between two moves, as finding so many pages is half of the way out; meanwhile the kernel takes them as soon as others
 * need memory, but for those that are page-locked. A forked child has none of it, nor a core file. One thread. Contexts are
 * those in which the memory is copied.
 */
#ifndef HAMI_ARENA_H
#define HAMI_ARENA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/resolve.h"

/* Page-locked one by one: other processes' requests of the driver wait for one (some ms) at most. */
#define HAMI_ARENA_PIECE (64ull << 20)

struct hami_arena {
	char *memory;
	size_t room;
	bool is_file; /* not kept: it ends when its content has come back; read and written by the functions below alone */
	size_t pinned; /* bytes at its beginning that are page-locked, each HAMI_ARENA_PIECE apart from the next */
};

/* Before anything moves: reads the environment, which the program may be changing later. */
void hami_arena_begin(void);

/* Returns how many bytes there are for it, with those that are page-locked. */
uint64_t hami_arena_room(const struct hami_arena *arena);

/*
 * Sees to at least `bytes`, whose content is undefined, and to room for half as many more, which costs nothing before it
 * is used: another time the program may have more. False: the host has none.
 */
bool hami_arena_have(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t bytes);

/*
 * Page-locks the first `used` bytes, at most `bound`, as far as the driver does: the GPU copies there itself. Fast where
 * the pages are there (25 ms per GiB on an H200), slow where they are to be found (180 ms per GiB).
 */
void hami_arena_pin(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t used,
		    size_t bound);

/* Copy from, or to, a place in it. False: the disk failed; never so in memory. */
bool hami_arena_read(const struct hami_arena *arena, void *to, const char *from, size_t bytes);
bool hami_arena_write(const struct hami_arena *arena, char *to, const void *from, size_t bytes);
/* After the last read: returns whether the disk lost nothing of what was read. */
bool hami_arena_intact(const struct hami_arena *arena);

/* What is in it is not needed any more. */
void hami_arena_give_back(struct hami_arena *arena);

#endif
