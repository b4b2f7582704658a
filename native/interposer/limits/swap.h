/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves this process's device memory to the host and back while the program runs, on a thread of its own, when root says
 * so in the job's record (docs/adr/077). Objects keep their handles and addresses, and calls that would need the memory
 * wait (limits/hold.h), so the program notices nothing but the time. Only of jobs whose record allows it. And holds a program back that has not
 * begun to use the GPU while it is not the job's turn (docs/adr/080).
 *
 * No lock: one thread. Not async-signal-safe. A forked child has none of it.
 */
#ifndef HAMI_SWAP_H
#define HAMI_SWAP_H
#include <stdbool.h>
#include <stdint.h>

/* Before cuInit: begins to follow what the process does with device memory, if the job may be moved. */
void hami_swap_prepare(void);
/*
 * Before the process takes any of the GPU's memory: waits until the job's turn has come, and says so once. Returns at once
 * from the second time on.
 */
void hami_swap_await(void);
/* The process has a context: begins to look at the job's record. */
void hami_swap_begin(void);
/* The process shares device memory with another, so it is not moved from now on. */
void hami_swap_share(void);
/* The process ends: nothing waits any more, and what is on the host is lost. */
void hami_swap_end(void);
/* Returns whether the object with this key, or what was mapped at this address, is gone from the GPU for good. */
bool hami_swap_absent(uint64_t key);

/* Whether the process ends while its memory is away: it is given no more. */
bool hami_swap_ends_away(void);
bool hami_swap_absent_at(uint64_t base);

/* In a forked child. */
void hami_swap_forked(void);

#endif
