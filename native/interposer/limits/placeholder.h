/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU before a request (docs/adr/104). Taking the GPU from another tenant takes 0.2 ms, which a request waits for after
 * its first launch. A latency-critical program that says that one comes soon (hooks/hint.c), or of which that is expected
 * (limits/announce.c), gets a placeholder at once while others are on its GPU: a kernel of one thread.
 *
 * It ends when the process's next kernel can begin: when the launch has been submitted, its stream has come to it, and 20 us
 * more have passed, for further launches. The launch puts a word into its stream, before itself, and writes another one
 * afterwards. So the GPU is kept while the kernel waits for a copy before it, and until it has something to go on with: as
 * soon as it finds nothing more of this program to read it goes to the next tenant, at the end of the blocks that run.
 * Where a stream cannot be given a word (a capture, another context, an old driver) the launch ends it as it returns. It
 * ends in any case after the time that it was given.
 *
 * In a stream of its own of the current context, which is prepared by the first one there (a module; some ms). A program
 * that never has one has none of it. cuCtxSynchronize and cuMemFree, which would wait for a placeholder, end it; what else
 * waits for all of a context waits for it, too.
 *
 * No lock: of several threads that hint at once one has a placeholder made. Thread-safe, not async-signal-safe. A forked
 * child has none.
 */
#ifndef HAMI_PLACEHOLDER_H
#define HAMI_PLACEHOLDER_H
#include <stdbool.h>
#include <stdint.h>

#define HAMI_PLACEHOLDER_NS 1000000ull

/*
 * A request is about to come. Returns whether there is a placeholder now, for `most_ns` at most, which the next launch has to
 * end: none where nobody has to give way, without a context, and where the driver refuses. 0: it is prepared, and there is
 * none. To prepare it may wait for all work of the context, and so for a kernel that does not end: with `idle` nothing is
 * prepared while any is under way.
 */
bool hami_placeholder_begin(uint64_t most_ns, bool idle);
/* Before a launch into `stream`, NULL: of the thread or of all; and after it, whether it succeeded or not. */
void hami_placeholder_launching(void *stream, bool per_thread);
void hami_placeholder_launched(void);
/* The request is on the GPU, or is over. */
void hami_placeholder_end(void);

/* In a forked child. */
void hami_placeholder_forked(void);

#endif
