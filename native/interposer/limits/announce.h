/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With HAMI_HPC_ANNOUNCE=1 in its environment, requests of a latency-critical program that come when they are expected
 * (arbitration/forecast.h) find the GPU taken, as if the program had announced them itself (limits/placeholder.h): in a
 * process with one slice and one context, while others are on its GPU that give way and nobody else who is latency-critical.
 *
 * For the thread that measures requests (limits/latency.h) alone.
 */
#ifndef HAMI_ANNOUNCE_H
#define HAMI_ANNOUNCE_H
#include <stdbool.h>
#include <stdint.h>

/* Before that thread begins: reads the environment, which the program may be changing later. */
void hami_announce_begin(void);

/* The last request began at `begun`, steady; 0: there was none. A request may be told several times. */
void hami_announce_note(int64_t begun);

/*
 * No request is under way at `now`. Announces the next one if it is time: returns whether it may have. Sets for how long
 * nothing is to be done, ns; HAMI_ANNOUNCE_NONE: until a request has begun.
 */
#define HAMI_ANNOUNCE_NONE INT64_MAX
bool hami_announce(int64_t now, int64_t *wait);

/* In a forked child. */
void hami_announce_forked(void);

#endif
