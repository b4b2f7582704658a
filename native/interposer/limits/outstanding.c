/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/outstanding.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/table.h"
#include "driver/access.h"
#include "driver/rm_objects.h"
#include "region/process.h"

#define END_NS 200000000l
#define OTHERS_NS 5000000l
#define GLANCE_NS 100000l /* a look of another thread takes some 10 us */

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

static struct contexts {
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
} contexts[HAMI_SLICES] = {
	[0 ... HAMI_SLICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER}};

static _Thread_local uint64_t making; /* the number of the context that this thread makes; 0: none */
static _Atomic bool ended;            /* libcuda is asked nothing any more */

static bool leaving(const struct contexts *c, const void *key)
{
	return c->leaving && c->leaving_key == key;
}

/* Waits until libcuda is not being asked about a context; NULL: about none. The lock is held. */
static void wait_for_answer(struct contexts *c, const void *key)
{
	while (c->asked && (!key || c->asked == key))
		pthread_cond_wait(&c->answered, &c->lock);
}

static struct timespec after(long ns)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += ns;
	t.tv_sec += t.tv_nsec / HAMI_NS_PER_S;
	t.tv_nsec %= HAMI_NS_PER_S;
	return t;
}

/* Takes the lock when libcuda is being asked about nothing. Returns false, without it, at `until`. */
static bool lock_unasked(struct contexts *c, const struct timespec *until)
{
	if (pthread_mutex_timedlock(&c->lock, until))
		return false;
	while (c->asked)
		if (pthread_cond_timedwait(&c->answered, &c->lock, until)) {
			pthread_mutex_unlock(&c->lock);
			return false;
		}
	return true;
}

static struct known entry(struct contexts *c, CUcontext context, const void *key)
{
	return (struct known){.key = key,
			      .context = context,
			      .made = making ? making : ++c->made,
			      .last = HAMI_OUTSTANDING_UNKNOWN};
}

void hami_outstanding_add(unsigned int slice, CUcontext context, const void *key)
{
	struct contexts *c = &contexts[slice];
	const bool makes = making && hami_objects_of_context(slice, making);
	pthread_mutex_lock(&c->lock);
	size_t i = 0;
	while (i < c->count && c->list[i].key != key)
		i++;
	const bool is_new = i == c->count;
	if (is_new && c->count == c->room) {
		size_t room = c->room ? 2 * c->room : 8;
		struct known *list = realloc(c->list, room * sizeof *list);
		c->incomplete = c->incomplete || !list;
		c->list = list ? list : c->list;
		c->room = list ? room : c->room;
	}
	c->count += is_new && c->count < c->room;
	if (i < c->count) {
		if (is_new || leaving(c, key) || c->list[i].ending || c->list[i].context != context)
			c->list[i] = entry(c, context, key);
		else if (makes)
			c->list[i].made = making; /* a thread that asked for it meanwhile added it first */
		c->list[i].anew = true;
	}
	pthread_mutex_unlock(&c->lock);
}

void hami_outstanding_make(unsigned int slice, bool begins)
{
	struct contexts *c = &contexts[slice];
	pthread_mutex_lock(&c->lock);
	c->making = begins ? c->making + 1 : c->making - (c->making > 0);
	making = begins ? ++c->made : 0;
	pthread_mutex_unlock(&c->lock);
}

static void end_context(struct contexts *c, const void *key, bool begins)
{
	pthread_mutex_lock(&c->lock);
	if (begins)
		wait_for_answer(c, key);
	for (size_t i = 0; i < c->count; i++) {
		if (c->list[i].key != key || (!begins && !c->list[i].ending))
			continue;
		if (begins)
			c->list[i].ending = true;
		else
			c->list[i] = c->list[--c->count];
		break;
	}
	pthread_mutex_unlock(&c->lock);
}

void hami_outstanding_end_context(const void *key, bool begins)
{
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		end_context(&contexts[i], key, begins);
}

void hami_outstanding_leave(unsigned int slice, const void *key, bool begins, bool gone)
{
	struct contexts *c = &contexts[slice];
	pthread_mutex_lock(&c->lock);
	c->leaving += begins ? 1 : -1;
	c->leaving_key = key;
	if (begins)
		wait_for_answer(c, key);
	for (size_t i = 0; i < c->count; i++) {
		struct known *k = &c->list[i];
		if (k->key != key)
			continue;
		if (begins && c->leaving == 1) {
			k->anew = false;
		} else if (!begins && gone && !k->anew) {
			*k = c->list[--c->count];
			break;
		}
	}
	pthread_mutex_unlock(&c->lock);
}

/*
 * Lets libcuda answer what it is being asked, as long as that takes on the GPU of the capture. A recording of another
 * GPU's context does not spoil it, and may take as long as that GPU's work, which may wait for what is captured now.
 */
static void capture(struct contexts *c, bool begins, bool own)
{
	const struct timespec until = after(OTHERS_NS);
	pthread_mutex_lock(&c->lock);
	c->captures += begins ? 1 : c->captures > 0 ? -1 : 0;
	if (begins && own)
		wait_for_answer(c, NULL);
	while (begins && !own && c->asked)
		if (pthread_cond_timedwait(&c->answered, &c->lock, &until))
			break;
	pthread_mutex_unlock(&c->lock);
}

void hami_outstanding_capture(bool begins)
{
	const struct real_cuda *real = hami_resolved_cuda();
	const int own = real ? hami_current_slice(real) : -1;
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		capture(&contexts[i], begins, own < 0 || (unsigned int)own == i);
}

void hami_outstanding_end(void)
{
	const struct timespec until = after(END_NS);
	ended = true;
	/* Lets a recording that is being made end, unless that takes as long as what the GPU runs. */
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (lock_unasked(&contexts[i], &until))
			pthread_mutex_unlock(&contexts[i].lock);
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
static enum hami_outstanding ask_unlocked(struct contexts *c, const struct real_cuda *real, size_t i)
{
	struct known one = c->list[i];
	if (leaving(c, one.key) || one.ending)
		return HAMI_OUTSTANDING_UNKNOWN;
	c->asked = one.key;
	pthread_mutex_unlock(&c->lock);
	enum hami_outstanding answer = ask(real, &one);
	pthread_mutex_lock(&c->lock);
	c->asked = NULL;
	pthread_cond_broadcast(&c->answered);
	for (size_t j = 0; j < c->count; j++)
		if (c->list[j].made == one.made) {
			one.anew = c->list[j].anew;
			one.paused = c->list[j].paused;
			one.last = answer;
			c->list[j] = one;
		}
	return answer;
}

/* Asks of all contexts of a slice; a sample, of those that are not paused. Its lock is held. */
static enum hami_outstanding ask_all(struct contexts *c, const struct real_cuda *real, int groups,
				     bool samples)
{
	enum hami_outstanding answer = HAMI_NOTHING_OUTSTANDING;
	if (c->captures || c->incomplete || (size_t)groups > c->count + c->making)
		answer = HAMI_OUTSTANDING_UNKNOWN;
	for (size_t i = 0; samples && i < c->count; i++)
		c->list[i].last = HAMI_OUTSTANDING_UNKNOWN;
	for (size_t i = 0; i < c->count && !ended && !c->captures; i++) {
		if (samples && c->list[i].paused)
			continue;
		enum hami_outstanding one = ask_unlocked(c, real, i);
		if (one != HAMI_NOTHING_OUTSTANDING && answer != HAMI_SOMETHING_OUTSTANDING)
			answer = one;
		if (answer == HAMI_SOMETHING_OUTSTANDING && !samples)
			break;
	}
	return answer;
}

static enum hami_outstanding look(struct contexts *c, int groups, bool waits, bool samples)
{
	const struct real_cuda *real = hami_resolved_cuda();
	if (!real || !real->cuCtxRecordEvent || !real->cuEventQuery || !real->cuCtxPushCurrent_v2 ||
	    !real->cuCtxPopCurrent_v2)
		return HAMI_OUTSTANDING_UNKNOWN;
	if (ended) /* NVML is not asked any more either */
		return HAMI_SOMETHING_OUTSTANDING;
	/* One at a time: the events are one set. */
	if (waits) {
		pthread_mutex_lock(&c->lock);
		wait_for_answer(c, NULL);
	} else {
		const struct timespec until = after(GLANCE_NS);
		if (!lock_unasked(c, &until))
			return HAMI_SOMETHING_OUTSTANDING;
	}
	enum hami_outstanding answer = ask_all(c, real, groups, samples);
	pthread_mutex_unlock(&c->lock);
	return answer;
}

enum hami_outstanding hami_outstanding_look(unsigned int slice, int groups)
{
	return look(&contexts[slice], groups, true, false);
}

enum hami_outstanding hami_outstanding_sample(unsigned int slice, int groups)
{
	return look(&contexts[slice], groups, true, true);
}

void hami_outstanding_pause(unsigned int slice, const uint64_t *paused, size_t count)
{
	struct contexts *c = &contexts[slice];
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->count; i++) {
		size_t p = 0;
		while (p < count && paused[p] != c->list[i].made)
			p++;
		c->list[i].paused = p < count;
	}
	pthread_mutex_unlock(&c->lock);
}

size_t hami_outstanding_answers(unsigned int slice, struct hami_answer *list, size_t most)
{
	struct contexts *c = &contexts[slice];
	pthread_mutex_lock(&c->lock);
	const size_t count = c->count < most ? c->count : most;
	for (size_t i = 0; i < count; i++)
		list[i] = (struct hami_answer){.context = c->list[i].made,
					       .answer = c->list[i].ending ? HAMI_SOMETHING_OUTSTANDING
									   : c->list[i].last,
					       .paused = c->list[i].paused};
	pthread_mutex_unlock(&c->lock);
	return count;
}

uint64_t hami_outstanding_making(void)
{
	return making;
}

enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups)
{
	return look(&contexts[slice], groups, false, false);
}

/* Returns whether the slice has so many contexts, without those being destroyed, and sets the last of them. */
static bool has_contexts(unsigned int slice, size_t wanted, CUcontext *context)
{
	struct contexts *c = &contexts[slice];
	size_t count = 0;
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->count; i++) {
		*context = c->list[i].ending ? *context : c->list[i].context;
		count += !c->list[i].ending;
	}
	const bool has = count == wanted && !c->making && !c->incomplete;
	pthread_mutex_unlock(&c->lock);
	return has;
}

CUcontext hami_outstanding_only(unsigned int slice)
{
	CUcontext context = NULL;
	return has_contexts(slice, 1, &context) ? context : NULL;
}

bool hami_outstanding_none(unsigned int slice)
{
	return has_contexts(slice, 0, &(CUcontext){NULL});
}

static void forget(struct contexts *c)
{
	hami_lock_renew(&c->lock);
	if (c->asked) { /* by a thread that the child has not */
		c->asked = NULL;
		c->answered = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	}
	if (!c->list && !c->count && !c->captures && !c->making && !c->incomplete)
		return;
	c->list = NULL; /* the parent's: another thread may have been changing it */
	c->count = c->room = c->making = 0;
	c->captures = c->leaving = 0;
	c->incomplete = false;
}

void hami_outstanding_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++)
		forget(&contexts[i]);
}
