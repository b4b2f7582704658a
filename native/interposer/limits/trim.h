/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives back what the pools of a context's device keep without need: its current and default pool, and those that the
 * program made, of which the first 64 alive are known; and what graphs that are not running allocated for themselves.
 *
 * No lock. Thread-safe, not async-signal-safe. A forked child knows no pools.
 */
#ifndef HAMI_TRIM_H
#define HAMI_TRIM_H
#include <stdbool.h>

#include "driver/resolve.h"

void hami_trim_pools(const struct real_cuda *real, CUcontext context);

/* The program made a pool; it is about to destroy one. */
void hami_trim_add(CUmemoryPool pool);
void hami_trim_remove(CUmemoryPool pool);
/* Returns whether all the pools that the program made are known: a segment of another may go at any time. */
bool hami_trim_knows_all(void);

/* The context is gone: whether pools went with it is not known. */
void hami_trim_forget(void);

/* In a forked child. */
void hami_trim_forked(void);

#endif
