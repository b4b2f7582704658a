/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/outstanding.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "driver/access.h"

#define END_NS 200000000l
#define GLANCE_NS 100000l /* a look of another thread takes some 10 us */

struct known {
	CUcontext context;
	const void *key;
	CUevent event; /* made at the first look */
	bool refused;  /* libcuda makes no event for it */
	bool anew;     /* it was retained meanwhile: its event may be a predecessor's */
	bool recorded; /* the event stands for something */
	uint64_t made; /* its number among all: an entry of the same key may take its place */
};

static struct {
	pthread_mutex_t lock;
	struct known *list;
	size_t count, room;
	int captures;
	size_t making; /* contexts under way */
	int leaving;   /* releases under way of the context of leaving_key, which may go at any moment */
	const void *leaving_key;
	bool incomplete; /* a context could not be remembered */
	uint64_t made;
	const void *asked; /* the key of the context that libcuda is being asked about, without the lock */
	pthread_cond_t answered;
	_Atomic bool ended;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER};

static bool leaving(const void *key)
{
	return known.leaving && known.leaving_key == key;
}

/* Waits until libcuda is not being asked about a context; NULL: about none. The lock is held. */
static void wait_for_answer(const void *key)
{
	while (known.asked && (!key || known.asked == key))
		pthread_cond_wait(&known.answered, &known.lock);
}

/* Takes the lock when libcuda is being asked about nothing. Returns false, without it, after `most` ns. */
static bool lock_unasked(long most)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += most;
	until.tv_sec += until.tv_nsec / HAMI_NS_PER_S;
	until.tv_nsec %= HAMI_NS_PER_S;
	if (pthread_mutex_timedlock(&known.lock, &until))
		return false;
	while (known.asked)
		if (pthread_cond_timedwait(&known.answered, &known.lock, &until)) {
			pthread_mutex_unlock(&known.lock);
			return false;
		}
	return true;
}

void hami_outstanding_add(CUcontext context, const void *key)
{
	pthread_mutex_lock(&known.lock);
	size_t i = 0;
	while (i < known.count && known.list[i].key != key)
		i++;
	if (i == known.count && known.count == known.room) {
		size_t room = known.room ? 2 * known.room : 8;
		struct known *list = realloc(known.list, room * sizeof *list);
		known.incomplete = known.incomplete || !list;
		if (list) {
			known.list = list;
			known.room = room;
		}
	}
	if (i == known.count && known.count < known.room)
		known.list[known.count++] =
			(struct known){.key = key, .context = context, .made = ++known.made};
	else if (i < known.count && (leaving(key) || known.list[i].context != context))
		known.list[i] = (struct known){.key = key, .context = context, .made = ++known.made};
	if (i < known.count)
		known.list[i].anew = true;
	pthread_mutex_unlock(&known.lock);
}

void hami_outstanding_make(bool begins)
{
	pthread_mutex_lock(&known.lock);
	known.making = begins ? known.making + 1 : known.making - (known.making > 0);
	pthread_mutex_unlock(&known.lock);
}

void hami_outstanding_remove(const void *key)
{
	pthread_mutex_lock(&known.lock);
	wait_for_answer(key);
	for (size_t i = 0; i < known.count; i++)
		if (known.list[i].key == key) {
			known.list[i] = known.list[--known.count];
			break;
		}
	pthread_mutex_unlock(&known.lock);
}

void hami_outstanding_leave(const void *key, bool begins, bool gone)
{
	pthread_mutex_lock(&known.lock);
	known.leaving += begins ? 1 : -1;
	known.leaving_key = key;
	if (begins)
		wait_for_answer(key);
	for (size_t i = 0; i < known.count; i++) {
		struct known *k = &known.list[i];
		if (k->key != key)
			continue;
		if (begins && known.leaving == 1) {
			k->anew = false;
		} else if (!begins && gone && !k->anew) {
			*k = known.list[--known.count];
			break;
		}
	}
	pthread_mutex_unlock(&known.lock);
}

void hami_outstanding_capture(bool begins)
{
	pthread_mutex_lock(&known.lock);
	known.captures += begins ? 1 : known.captures > 0 ? -1 : 0;
	if (begins)
		wait_for_answer(NULL);
	pthread_mutex_unlock(&known.lock);
}

void hami_outstanding_end(void)
{
	known.ended = true;
	/* Lets a recording that is being made end, unless that takes as long as what the GPU runs. */
	if (lock_unasked(END_NS))
		pthread_mutex_unlock(&known.lock);
}

/* Makes the event that stands for the context's work. */
static bool prepare(const struct real_cuda *real, struct known *k)
{
	CUcontext before;
	if (k->event || k->refused)
		return k->event != NULL;
	k->refused = true;
	if (real->cuCtxPushCurrent_v2(k->context) != CUDA_SUCCESS)
		return false;
	if (real->cuEventCreate(&k->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		k->event = NULL;
	real->cuCtxPopCurrent_v2(&before);
	k->refused = k->event == NULL;
	return k->event != NULL;
}

static enum hami_outstanding ask(const struct real_cuda *real, struct known *k)
{
	if (!prepare(real, k))
		return HAMI_OUTSTANDING_UNKNOWN;
	/* What was recorded last is not done: nothing new needs to be recorded. */
	if (k->recorded && real->cuEventQuery(k->event) == CUDA_ERROR_NOT_READY)
		return HAMI_SOMETHING_OUTSTANDING;
	CUresult result = real->cuCtxRecordEvent(k->context, k->event);
	k->recorded = result == CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return HAMI_OUTSTANDING_UNKNOWN; /* a capture; a broken context; a driver that cannot */
	return real->cuEventQuery(k->event) == CUDA_ERROR_NOT_READY ? HAMI_SOMETHING_OUTSTANDING
								    : HAMI_NOTHING_OUTSTANDING;
}

/*
 * Asks about the context of one entry. The lock is held, but not while libcuda is asked: whoever makes an end of this
 * context, or begins a capture, waits, and nobody else. Entries may move meanwhile, and another may take its place.
 */
static enum hami_outstanding ask_unlocked(const struct real_cuda *real, size_t i)
{
	struct known one = known.list[i];
	if (leaving(one.key))
		return HAMI_OUTSTANDING_UNKNOWN;
	known.asked = one.key;
	pthread_mutex_unlock(&known.lock);
	enum hami_outstanding answer = ask(real, &one);
	pthread_mutex_lock(&known.lock);
	known.asked = NULL;
	pthread_cond_broadcast(&known.answered);
	for (size_t j = 0; j < known.count; j++)
		if (known.list[j].made == one.made) {
			one.anew = known.list[j].anew;
			known.list[j] = one;
		}
	return answer;
}

/* Asks of all contexts. known.lock is held. */
static enum hami_outstanding ask_all(const struct real_cuda *real, int groups)
{
	enum hami_outstanding answer = HAMI_NOTHING_OUTSTANDING;
	if (known.captures || known.incomplete || (size_t)groups > known.count + known.making)
		answer = HAMI_OUTSTANDING_UNKNOWN;
	for (size_t i = 0; i < known.count && !known.ended && !known.captures; i++) {
		enum hami_outstanding one = ask_unlocked(real, i);
		if (one == HAMI_SOMETHING_OUTSTANDING) {
			answer = one;
			break;
		}
		if (one == HAMI_OUTSTANDING_UNKNOWN)
			answer = one;
	}
	return answer;
}

static enum hami_outstanding look(int groups, bool waits)
{
	const struct real_cuda *real = hami_resolved_cuda();
	if (!real || !real->cuCtxRecordEvent || !real->cuEventQuery || !real->cuCtxPushCurrent_v2 ||
	    !real->cuCtxPopCurrent_v2)
		return HAMI_OUTSTANDING_UNKNOWN;
	if (known.ended) /* NVML is not asked any more either */
		return HAMI_SOMETHING_OUTSTANDING;
	/* One at a time: the events are one set. */
	if (waits) {
		pthread_mutex_lock(&known.lock);
		wait_for_answer(NULL);
	} else if (!lock_unasked(GLANCE_NS)) {
		return HAMI_SOMETHING_OUTSTANDING;
	}
	enum hami_outstanding answer = ask_all(real, groups);
	pthread_mutex_unlock(&known.lock);
	return answer;
}

enum hami_outstanding hami_outstanding_look(int groups)
{
	return look(groups, true);
}

enum hami_outstanding hami_outstanding_glance(int groups)
{
	return look(groups, false);
}

void hami_outstanding_forked(void)
{
	hami_lock_renew(&known.lock);
	if (known.asked) { /* by a thread that the child has not */
		known.asked = NULL;
		known.answered = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	}
	if (!known.list && !known.count && !known.captures && !known.making && !known.incomplete)
		return;
	known.list = NULL; /* the parent's: another thread may have been changing it */
	known.count = known.room = known.making = 0;
	known.captures = known.leaving = 0;
	known.incomplete = false;
}
