/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the application that wait while the process's device memory is moved (limits/swap.h): those that give the GPU
 * work or change its memory (hooks/held.def), and the requests for memory below them, of functions that are not hooked.
 * A thread that is inside WORK may enter MEMORY, never the other way round.
 *
 * No lock: numbers of each thread, and a futex each. Thread-safe, not async-signal-safe. A thread that is cancelled, at any
 * point, or ends inside is inside no more; one that leaves by longjmp() is, until it ends. Nobody is in a forked child.
 */
#ifndef HAMI_HOLD_H
#define HAMI_HOLD_H
#include <stdbool.h>
#include <stdint.h>

enum hami_hold { HAMI_HOLD_WORK, HAMI_HOLD_MEMORY, HAMI_HOLDS };

/* The program may be moved: calls are counted from now on. Before anything else is called here. */
void hami_hold_begin(void);

/* Around a call: waits while it is closed. Nothing on a thread of the mover, or in a program that stays. */
void hami_hold_enter(enum hami_hold what);
void hami_hold_leave(enum hami_hold what);

/* This thread moves the memory: nothing holds it. */
void hami_hold_pass(void);
/* Closes, and waits until nobody is inside, at most `most` ns. False: somebody still was, and it is open again. */
bool hami_hold_close(enum hami_hold what, int64_t most);
void hami_hold_open(enum hami_hold what);

/* Returns whether a call waits. */
bool hami_hold_waits(enum hami_hold what);

/* In a forked child. */
void hami_hold_forked(void);

#endif
