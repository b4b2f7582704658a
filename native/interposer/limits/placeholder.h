/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU before a request (docs/adr/104). Taking the GPU from another tenant takes 0.2 ms, which a request waits for after
 * its first launch. A latency-critical program that says that one comes soon (hooks/hint.c) while others are on its GPU gets
 * a placeholder at once: a kernel of one thread that ends with the process's next launch, or after HAMI_PLACEHOLDER_NS.
 *
 * In a stream of its own of the current context, which is prepared by the first hint there (a module; some ms). A program
 * that never hints has none of it. What waits for all of a context (cuCtxSynchronize, cuMemFree) waits for the
 * placeholder, too.
 *
 * No lock: of several threads that hint at once one has a placeholder made. Thread-safe, not async-signal-safe. A forked
 * child has none.
 */
#ifndef HAMI_PLACEHOLDER_H
#define HAMI_PLACEHOLDER_H
#include <stdbool.h>

#define HAMI_PLACEHOLDER_NS 1000000ull

/*
 * A request is about to come. Returns whether there is a placeholder now, which the next launch has to end: none where nobody
 * has to give way, without a context, and where the driver refuses.
 */
bool hami_placeholder_begin(void);
/* The request is on the GPU, or is over. */
void hami_placeholder_end(void);

/* In a forked child. */
void hami_placeholder_forked(void);

#endif
