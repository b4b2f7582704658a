/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether this process has work on a slice's GPU that is not done: asked of libcuda for each context, by an event of
 * its own that stands for everything the context was given (cuCtxRecordEvent: 0.7 us, 2 us with 64 busy
 * streams). Kernels, graphs, copies, memsets and what the GPU launches itself count, in every stream.
 *
 * A recording spoils a stream capture, so none is made while one is under way, on whatever GPU.
 *
 * A lock for each slice, held over no call, and never two at once. A recording waits for no work itself, but for a launch that waits for room in its
 * queue: the keeper asks through limits/probe.h. Whoever is about to end the very context that is being asked about
 * waits for the answer, as does a capture that begins; nobody else. Thread-safe, not async-signal-safe. A forked
 * child starts without contexts.
 */
#ifndef HAMI_OUTSTANDING_H
#define HAMI_OUTSTANDING_H
#include <stdbool.h>

#include "driver/resolve.h"

enum hami_outstanding {
	HAMI_NOTHING_OUTSTANDING,
	HAMI_SOMETHING_OUTSTANDING,
	HAMI_OUTSTANDING_UNKNOWN, /* an old driver, a capture, or work of other clients than libcuda */
};

/* Asks. `groups` is how many compute groups the process has: more than contexts means other clients. */
enum hami_outstanding hami_outstanding_look(unsigned int slice, int groups);
/* The same on a thread of the application: HAMI_SOMETHING_OUTSTANDING if another thread asks for over 0.1 ms. */
enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups);

/* Returns the only context on a slice's GPU; NULL where there is none, or several. */
CUcontext hami_outstanding_only(unsigned int slice);

/* Returns whether the process has no context on the slice's GPU, and makes none. */
bool hami_outstanding_none(unsigned int slice);

/*
 * Around the making of a context. Until it is added, its compute group is nobody's unknown work: what libcuda does
 * there to set it up is not the application's.
 */
void hami_outstanding_make(unsigned int slice, bool begins);
/* A context was made, or is about to go, wherever it is. `key` names it: the context itself, or its green context. */
void hami_outstanding_add(unsigned int slice, CUcontext context, const void *key);
void hami_outstanding_remove(const void *key);
/*
 * Around a release of the primary context (the only `key`), which may be its last: it is not asked between the two. `gone`: there is
 * none after it, and it is forgotten unless another thread has added it meanwhile.
 */
void hami_outstanding_leave(unsigned int slice, const void *key, bool begins, bool gone);

/* Around a stream capture: before it begins, and when it has ended or did not begin. */
void hami_outstanding_capture(bool begins);

/* Before libcuda ends with the process: nothing is asked from now on. */
void hami_outstanding_end(void);

/* In a forked child. */
void hami_outstanding_forked(void);

#endif
