/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that libcuda holds for the stacks of a context's threads on the GPU (CU_LIMIT_STACK_SIZE): for as many as run
 * there at once, 264 MiB on an H200, and 2 GiB in a program that asked for 8 KiB each. Nothing is in it while nothing runs.
 * So it is given back before a move ends, and had again before the program goes on. It stays charged meanwhile.
 *
 * For the mover's thread, with the calls held that give the GPU work, and no others: it calls libcuda. Not async-signal-safe.
 */
#ifndef HAMI_STACK_H
#define HAMI_STACK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/resolve.h"

struct hami_stack {
	CUcontext context; /* NULL: it is there */
	size_t limit;      /* of each thread, bytes */
	uint64_t bytes;    /* that were given back */
};

/* Gives it back, of a context in which nothing runs, where libcuda lets it. */
void hami_stack_give_back(struct hami_stack *stack, const struct real_cuda *real, CUcontext context);
/* Has it again, if it was given back. False: the GPU has no room for it. */
bool hami_stack_have(struct hami_stack *stack, const struct real_cuda *real);

#endif
