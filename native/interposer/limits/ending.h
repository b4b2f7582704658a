/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process used last counts too: exit() waits until the keepers (limits/keeper.h) have counted it, some 0.1 ms and
 * at most 20. Who is killed, or calls _exit(), takes with it what was used since the last count.
 * Thread-safe, not async-signal-safe; no lock.
 */
#ifndef HAMI_ENDING_H
#define HAMI_ENDING_H
#include <stdbool.h>
#include <stdint.h>

/* For the keeper of a slice: whether there may be something to count. */
void hami_ending_works(unsigned int slice, bool works);
/* For a launch that wakes the keeper: there will be, unless nobody keeps any more. */
void hami_ending_woken(unsigned int slice);
/* For the keeper: it counts nothing any more. */
void hami_ending_gone(unsigned int slice);
/* For the keeper: sleeps for `ns`. True, at once, when exit() waits: the keeper counts, and calls hami_ending_counted(). */
bool hami_ending_sleep(unsigned int slice, int64_t ns);
void hami_ending_counted(unsigned int slice);

/* For exit(): waits for the keepers' last counts. */
void hami_ending(void);

/* In a forked child. */
void hami_ending_forked(void);

#endif
