/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contexts that this process has on each slice's GPU: what outstanding.c and known.c share. The functions are those of
 * outstanding.h.
 */
#ifndef HAMI_KNOWN_H
#define HAMI_KNOWN_H
#include <pthread.h>

#include "base/table.h"
#include "limits/outstanding.h"

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

#endif
