/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the requests of a latency-critical job take. A request begins with the first launch after nothing was
 * outstanding, and ends when nothing is outstanding any more (limits/outstanding.h), on none of the process's GPUs.
 * That is looked for
 *
 *	when the application has waited for its work and goes on (hooks/sync.c), at once;
 *	by a thread of its own, each time another eighth of the request's time has passed (at least LOOK_NS_LEAST,
 *	at most LOOK_NS_MOST), so that what nobody waits for is measured at most so much too long.
 *
 * Requests that overlap, or that follow one another before anybody looks, count as one. Where the driver cannot
 * tell what is outstanding, and around stream captures, nothing is measured. A program that says itself when its
 * requests begin and end (hooks/hint.c) is not measured in this way.
 *
 * No lock. Thread-safe, not async-signal-safe. A forked child has no such thread until it schedules a channel.
 */
#ifndef HAMI_LATENCY_H
#define HAMI_LATENCY_H
#include <stdbool.h>
#include <stdint.h>

#include "region/region.h"

/* Starts measuring, if the job is latency-critical and this process is not measured yet. One thread at a time. */
void hami_latency_watch(void);

/* After a launch that began at `begun` (hami_launch_slow()): a request has begun, unless the launch failed. */
void hami_latency_launched(int64_t begun, bool succeeded);

/*
 * Returns where requests are counted: the region of the first slice that this process uses. A request of several GPUs
 * is counted once.
 */
struct hami_region *hami_latency_region(void);

/* Not 0 while a request is under way. The hooks of waiting (hooks/sync.c) do one relaxed load of it. */
extern _Atomic int64_t hami_latency_begun __attribute__((visibility("hidden")));

/* The application has waited for work, while a request was under way: it may be done. */
void hami_latency_waited(void);

/* Measures no more: the program does it itself. */
void hami_latency_end(void);

/* In a forked child. */
void hami_latency_forked(void);

#endif
