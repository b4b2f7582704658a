/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host for what is moved off the GPU. It is kept between two moves, as finding so many pages is half of the
 * way out; meanwhile the kernel takes them as soon as others need memory. A forked child has none of it. One thread.
 */
#ifndef HAMI_ARENA_H
#define HAMI_ARENA_H
#include <stdbool.h>
#include <stddef.h>

struct hami_arena {
	char *memory;
	size_t room;
};

/* Sees to at least `bytes`, whose content is undefined. False: the host has none. */
bool hami_arena_have(struct hami_arena *arena, size_t bytes);

/* What is in it is not needed any more. */
void hami_arena_give_back(const struct hami_arena *arena);

#endif
