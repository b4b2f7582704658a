/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process used last counts too: exit() waits until the keeper (limits/share.h) has counted it, some 0.1 ms and
 * at most 20. Who is killed, or calls _exit(), takes with it what was used since the last count.
 * Thread-safe, not async-signal-safe; no lock.
 */
#ifndef HAMI_ENDING_H
#define HAMI_ENDING_H
#include <stdbool.h>
#include <stdint.h>

/* For the keeper: whether there may be something to count. */
void hami_ending_works(bool works);
/* For a launch that wakes the keeper: there will be, unless nobody keeps any more. */
void hami_ending_woken(void);
/* For the keeper: it counts nothing any more. */
void hami_ending_gone(void);
/* For the keeper: sleeps for `ns`. True, at once, when exit() waits: the keeper counts, and calls hami_ending_counted(). */
bool hami_ending_sleep(int64_t ns);
void hami_ending_counted(void);

/* For exit(): waits for the keeper's last count. */
void hami_ending(void);

/* In a forked child. */
void hami_ending_forked(void);

#endif
