/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contexts that this process has on each slice's GPU, and what was last told of each by limits/outstanding.h, which asks.
 *
 * A lock for each slice, held over no call, and never two at once. Thread-safe, not async-signal-safe. A forked child starts
 * without contexts.
 */
#ifndef HAMI_KNOWN_H
#define HAMI_KNOWN_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/table.h"
#include "driver/resolve.h"

enum hami_outstanding {
	HAMI_NOTHING_OUTSTANDING,
	HAMI_SOMETHING_OUTSTANDING,
	HAMI_OUTSTANDING_UNKNOWN, /* an old driver, a capture, or work of other clients than libcuda */
};

struct known {
	CUcontext context;
	const void *key;
	CUevent event;              /* made at the first look */
	bool refused;               /* libcuda makes no event for it */
	bool anew;                  /* it was retained meanwhile: its event may be a predecessor's */
	bool recorded;              /* the event stands for something */
	uint64_t made;              /* its number among all: an entry of the same key may take its place */
	bool ending;                /* it is being destroyed: whatever it has is not known */
	bool paused;                /* its channels are, though others are open */
	enum hami_outstanding last; /* answer, of the last sample */
};

struct contexts {
	pthread_mutex_t lock;
	struct known *list;
	size_t count, room;
	int captures;
	size_t making; /* contexts under way */
	int leaving;   /* releases under way of the context of leaving_key, which may go at any moment */
	const void *leaving_key;
	bool incomplete; /* a context could not be remembered */
	_Atomic uint64_t made;
	const void *asked; /* the key of the context that libcuda is being asked about, without the lock */
	pthread_cond_t answered;
};

extern struct contexts hami_known[HAMI_SLICES];

/* Returns whether it may go at any moment. The lock is held. */
static inline bool hami_known_leaving(const struct contexts *c, const void *key)
{
	return c->leaving && c->leaving_key == key;
}

/* Waits until libcuda is not being asked about a context; NULL: about none. The lock is held. */
void hami_known_wait(struct contexts *c, const void *key);

/* Tells which contexts are paused while others are open, by their numbers. */
void hami_known_pause(unsigned int slice, const uint64_t *paused, size_t count);
/* Writes what the last sample was told of each context, at most `most`. Returns of how many. */
struct hami_answer {
	uint64_t context;             /* its number; they grow in the order in which contexts are made */
	enum hami_outstanding answer; /* of one that was not asked: unknown */
	bool paused;                  /* since before the sample, and was not asked */
};
size_t hami_known_answers(unsigned int slice, struct hami_answer *list, size_t most);
/* Returns the number of the context that this thread is making; 0: of none. */
uint64_t hami_known_making(void);

/* Returns the owner of what goes with a context (base/table.h), no other context's; 0: not known, or it may go at any moment. */
uint64_t hami_known_owner(unsigned int slice, CUcontext context);
/* Returns the slice that such a context is on. */
unsigned int hami_known_slice(uint64_t its_owner);

/* Returns the only context on a slice's GPU; NULL where there is none, or several. */
CUcontext hami_known_only(unsigned int slice);
/* Returns whether the process has no context on the slice's GPU, and makes none. */
bool hami_known_none(unsigned int slice);
/* Returns whether a stream capture of the process is under way. */
bool hami_known_captures(unsigned int slice);

/*
 * Around the making of a context. Until it is added, its compute group is nobody's unknown work: what libcuda does
 * there to set it up is not the application's.
 */
void hami_known_make(unsigned int slice, bool begins);
/*
 * A context was made; or comes to its end, wherever it is: around that, which may take as long as its work, and it is not
 * asked any more. `key` names it: the context itself, or its green context. Returns its hami_known_owner().
 */
void hami_known_add(unsigned int slice, CUcontext context, const void *key);
uint64_t hami_known_end_context(const void *key, bool begins);
/*
 * Around a release of the primary context (the only `key`), which may be its last: it is not asked between the two.
 * `gone`: there is none after it, and it is forgotten unless another thread has added it meanwhile. Returns its
 * hami_known_owner().
 */
uint64_t hami_known_leave(unsigned int slice, const void *key, bool begins, bool gone);

/* In a forked child. */
void hami_known_forked(void);

#endif
