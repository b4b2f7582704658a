/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With HAMI_HPC_ANNOUNCE=1 in its environment, requests of a latency-critical program that come when they are expected
 * (arbitration/forecast.h) find the GPU taken, as if the program had announced them itself (limits/placeholder.h). By the thread that measures requests (limits/latency.c), of a
 * process with one slice and one context, while somebody else is on its GPU who gives way, and nobody latency-critical.
 *
 * For that thread alone.
 */
#ifndef HAMI_ANNOUNCE_H
#define HAMI_ANNOUNCE_H
#include <stdint.h>

/* Before that thread begins: reads the environment, which the program may be changing later. */
void hami_announce_begin(void);

/* The last request began at `begun`, steady; 0: there was none. A request may be told several times. */
void hami_announce_note(int64_t begun);

/*
 * No request is under way at `now`. Announces the next one if it is time. Returns for how long nothing is to be done, ns;
 * HAMI_ANNOUNCE_NONE: until a request has begun.
 */
#define HAMI_ANNOUNCE_NONE INT64_MAX
int64_t hami_announce(int64_t now);

/* In a forked child. */
void hami_announce_forked(void);

#endif
