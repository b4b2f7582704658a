/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves this process's device memory to the host and back while the program runs, on a thread of its own, when root says
 * so in the job's record (docs/adr/077). Objects keep their handles and addresses, and calls that would need the memory
 * wait (limits/hold.h), so the program notices nothing but the time. Only of jobs whose record allows it.
 *
 * No lock: one thread. Not async-signal-safe. A forked child has none of it.
 */
#ifndef HAMI_SWAP_H
#define HAMI_SWAP_H

/* Before cuInit: begins to follow what the process does with device memory, if the job may be moved. */
void hami_swap_prepare(void);
/* The process has a context: begins to look at the job's record. */
void hami_swap_begin(void);
/* The process shares device memory with another, so it is not moved from now on. */
void hami_swap_share(void);
/* The process ends: nothing waits any more. */
void hami_swap_end(void);

/* In a forked child. */
void hami_swap_forked(void);

#endif
