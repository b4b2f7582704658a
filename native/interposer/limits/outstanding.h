/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether this process has work on a slice's GPU that is not done: asked of libcuda for each context, by an event of
 * its own that stands for everything the context was given (cuCtxRecordEvent: 0.7 us, 2 us with 64 busy
 * streams). Kernels, graphs, copies, memsets and what the GPU launches itself count, in every stream.
 *
 * A recording spoils a stream capture, so none is made while one is under way, on whatever GPU.
 *
 * A lock for each slice, held over no call, and never two at once. A recording waits for no work itself, but for a launch
 * that waits for room in its queue: the keeper asks through limits/probe.h. Whoever is about to end the very context that
 * is being asked about waits for the answer, as does a capture that begins; nobody else. Thread-safe, not
 * async-signal-safe. A forked child starts without contexts.
 */
#ifndef HAMI_OUTSTANDING_H
#define HAMI_OUTSTANDING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/resolve.h"
#include "limits/known.h"

/* Asks. `groups` is how many compute groups the process has: more than contexts means other clients. */
enum hami_outstanding hami_outstanding_look(unsigned int slice, int groups);
/* The same on a thread of the application: HAMI_SOMETHING_OUTSTANDING if another thread asks for over 0.1 ms. */
enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups);

/*
 * For the keeper: a sample asks as a look does, but of every context, also when one has work, and of none that is paused
 * while others are open: there is no telling what it has, and it does nothing on the GPU.
 */
enum hami_outstanding hami_outstanding_sample(unsigned int slice, int groups);

/*
 * Calls `visit` in the only context on a slice's GPU, which stays meanwhile, as for a question. Nothing is called when there
 * is none, or several, or one that goes, or a capture is under way.
 */
void hami_outstanding_visit(unsigned int slice, void (*visit)(void));

/* Around a stream capture: before it begins, and when it has ended or did not begin. */
void hami_outstanding_capture(bool begins);

/* Before libcuda ends with the process: nothing is asked from now on. */
void hami_outstanding_end(void);

#endif
