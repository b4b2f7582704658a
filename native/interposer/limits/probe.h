/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks for outstanding work (limits/outstanding.h) on a thread of its own, so that the keeper never waits inside
 * libcuda: a launch that finds the queue full keeps its context's lock until the GPU has made room, which may take
 * as long as the longest kernel, and the keeper must pause that kernel meanwhile.
 *
 * hami_probe() is for one thread, the slice's keeper. No lock. A forked child has no such thread until it asks.
 */
#ifndef HAMI_PROBE_H
#define HAMI_PROBE_H
#include "limits/outstanding.h"

/*
 * Asks, as hami_outstanding_look(), on a thread of each slice. Who waits inside libcuda waits for work that is not done: without an answer
 * within some ms that is HAMI_SOMETHING_OUTSTANDING.
 */
enum hami_outstanding hami_probe(unsigned int slice, int groups);

/* In a forked child. */
void hami_probe_forked(void);

#endif
