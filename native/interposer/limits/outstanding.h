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

enum hami_outstanding {
	HAMI_NOTHING_OUTSTANDING,
	HAMI_SOMETHING_OUTSTANDING,
	HAMI_OUTSTANDING_UNKNOWN, /* an old driver, a capture, or work of other clients than libcuda */
};

/* Asks. `groups` is how many compute groups the process has: more than contexts means other clients. */
enum hami_outstanding hami_outstanding_look(unsigned int slice, int groups);
/* The same on a thread of the application: HAMI_SOMETHING_OUTSTANDING if another thread asks for over 0.1 ms. */
enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups);

/*
 * For the keeper: a sample asks as a look does, but of every context, also when one has work, and of none that is paused
 * while others are open: there is no telling what it has, and it does nothing on the GPU.
 */
enum hami_outstanding hami_outstanding_sample(unsigned int slice, int groups);
/* Tells which contexts are paused while others are open, by their numbers. */
void hami_outstanding_pause(unsigned int slice, const uint64_t *paused, size_t count);
/* Writes what the last sample was told of each context, at most `most`. Returns of how many. */
struct hami_answer {
	uint64_t context;             /* its number; they grow in the order in which contexts are made */
	enum hami_outstanding answer; /* of one that was not asked: unknown */
	bool paused;                  /* since before the sample, and was not asked */
};
size_t hami_outstanding_answers(unsigned int slice, struct hami_answer *list, size_t most);
/* Returns the number of the context that this thread is making; 0: of none. */
uint64_t hami_outstanding_making(void);

/* Returns the only context on a slice's GPU; NULL where there is none, or several. */
CUcontext hami_outstanding_only(unsigned int slice);

/*
 * Calls `visit` in the only context on a slice's GPU, which stays meanwhile, as for a question. Returns false when there is
 * none, or several, or one that goes, or a capture is under way.
 */
bool hami_outstanding_visit(unsigned int slice, void (*visit)(const struct real_cuda *real));

/* Returns whether the process has no context on the slice's GPU, and makes none. */
bool hami_outstanding_none(unsigned int slice);

/*
 * Around the making of a context. Until it is added, its compute group is nobody's unknown work: what libcuda does
 * there to set it up is not the application's.
 */
void hami_outstanding_make(unsigned int slice, bool begins);
/*
 * A context was made; or comes to its end, wherever it is: around that, which may take as long as its work, and it is not
 * asked any more. `key` names it: the context itself, or its green context.
 */
void hami_outstanding_add(unsigned int slice, CUcontext context, const void *key);
void hami_outstanding_end_context(const void *key, bool begins);
/*
 * Around a release of the primary context (the only `key`), which may be its last: it is not asked between the two.
 * `gone`: there is none after it, and it is forgotten unless another thread has added it meanwhile.
 */
void hami_outstanding_leave(unsigned int slice, const void *key, bool begins, bool gone);

/* Around a stream capture: before it begins, and when it has ended or did not begin. */
void hami_outstanding_capture(bool begins);

/* Before libcuda ends with the process: nothing is asked from now on. */
void hami_outstanding_end(void);

/* In a forked child. */
void hami_outstanding_forked(void);

#endif
