/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a process's device memory a move takes off the GPU, and its places on the host (limits/swap.h says when). One
 * thread; another one may look for what is absent when it has ended. Not async-signal-safe.
 */
#ifndef HAMI_MOVED_H
#define HAMI_MOVED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/movable.h"
#include "driver/resolve.h"
#include "limits/arena.h"
#include "limits/transfer.h"

/* Smaller objects stay, but those known to hold nothing of libcuda's: some are its own, which the GPU reads at any time. */
#define HAMI_MOVED_LEAST (4ull << 20)

struct hami_moved {
	struct hami_movable *objects;
	struct hami_piece *pieces; /* of the objects, in their order */
	size_t count;
	struct hami_arena arena;
	size_t bytes; /* of what is in it */
	CUcontext context;
};

/* Makes room on the host for all objects that can be moved. Returns HAMI_SWAPPED_HOST, or why there is none. */
uint32_t hami_moved_plan(struct hami_moved *m, const struct real_cuda *real, CUcontext context);

/*
 * Frees what was copied, adds up its bytes, keeps these objects and forgets the others. Returns HAMI_SWAPPED_HOST, or why
 * nothing of the application's left: of what is libcuda's own the driver refuses the address. *lost: an object is on the
 * GPU and mapped no more.
 */
uint32_t hami_moved_free(struct hami_moved *m, uint64_t *moved, bool *lost);

/* After all of it was copied back: returns NULL, or what failed. */
const char *hami_moved_failure(const struct hami_moved *m);

/* It is on the GPU again, or never left. */
void hami_moved_forget(struct hami_moved *m);

/* Returns whether an object of it has this key, or is mapped at this address. */
bool hami_moved_has(const struct hami_moved *m, uint64_t key);
bool hami_moved_has_at(const struct hami_moved *m, uint64_t base);

#endif
