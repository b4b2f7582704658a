/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/outstanding.h"

#include "base/clock.h"
#include "driver/access.h"
#include "limits/known.h"
#include "region/process.h"

#define END_NS 200000000l
#define OTHERS_NS 5000000l
#define GLANCE_NS 100000l /* a look of another thread takes some 10 us */

static _Atomic bool ended; /* libcuda is asked nothing any more */

/* Takes the lock when libcuda is being asked about nothing. Returns false, without it, at `until`. Not to be cancelled. */
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

/*
 * Lets libcuda answer what it is being asked, as long as that takes on the GPU of the capture. A recording of another
 * GPU's context does not spoil it, and may take as long as that GPU's work, which may wait for what is captured now.
 */
static void capture(struct contexts *c, bool begins, bool own)
{
	const struct timespec until = hami_clock_after(OTHERS_NS);
	pthread_mutex_lock(&c->lock);
	c->captures += begins ? 1 : c->captures > 0 ? -1 : 0;
	if (begins && own)
		hami_known_wait(c, NULL);
	while (begins && !own && c->asked)
		if (pthread_cond_timedwait(&c->answered, &c->lock, &until))
			break;
	pthread_mutex_unlock(&c->lock);
}

void hami_outstanding_capture(bool begins)
{
	int state;
	const struct real_cuda *real = hami_resolved_cuda();
	const int own = real ? hami_current_slice(real) : -1;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &state); /* a thread that ended there would keep a lock */
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		capture(&hami_known[i], begins, own < 0 || (unsigned int)own == i);
	pthread_setcancelstate(state, NULL);
}

void hami_outstanding_end(void)
{
	const struct timespec until = hami_clock_after(END_NS);
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	ended = true;
	/* Lets a recording that is being made end, unless that takes as long as what the GPU runs. */
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (lock_unasked(&hami_known[i], &until))
			pthread_mutex_unlock(&hami_known[i].lock);
	pthread_setcancelstate(state, NULL);
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

/* Gives up the lock, so that libcuda can be asked about a context that stays, and nobody asks another thing meanwhile. */
static void begin_asking(struct contexts *c, const void *key)
{
	c->asked = key;
	pthread_mutex_unlock(&c->lock);
}

static void end_asking(struct contexts *c)
{
	pthread_mutex_lock(&c->lock);
	c->asked = NULL;
	pthread_cond_broadcast(&c->answered);
}

/*
 * Asks about the context of one entry. The lock is held, but not while libcuda is asked: whoever makes an end of this
 * context, or begins a capture, waits, and nobody else. Entries may move meanwhile, and another may take its place.
 */
static enum hami_outstanding ask_unlocked(struct contexts *c, const struct real_cuda *real, size_t i)
{
	struct known one = c->list[i];
	if (hami_known_leaving(c, one.key) || one.ending)
		return HAMI_OUTSTANDING_UNKNOWN;
	begin_asking(c, one.key);
	enum hami_outstanding answer = ask(real, &one);
	end_asking(c);
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
		hami_known_wait(c, NULL);
	} else {
		const struct timespec until = hami_clock_after(GLANCE_NS);
		if (!lock_unasked(c, &until))
			return HAMI_SOMETHING_OUTSTANDING;
	}
	enum hami_outstanding answer = ask_all(c, real, groups, samples);
	pthread_mutex_unlock(&c->lock);
	return answer;
}

enum hami_outstanding hami_outstanding_look(unsigned int slice, int groups)
{
	return look(&hami_known[slice], groups, true, false);
}

enum hami_outstanding hami_outstanding_sample(unsigned int slice, int groups)
{
	return look(&hami_known[slice], groups, true, true);
}

/* By a thread of the program, which may be cancelled while libcuda is asked: nobody would be told that it is not. */
enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups)
{
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	enum hami_outstanding answer = look(&hami_known[slice], groups, false, false);
	pthread_setcancelstate(state, NULL);
	return answer;
}

void hami_outstanding_visit(unsigned int slice, void (*visit)(void))
{
	struct contexts *c = &hami_known[slice];
	const struct real_cuda *real = hami_resolved_cuda();
	CUcontext before;
	if (!real || !real->cuCtxPushCurrent_v2 || !real->cuCtxPopCurrent_v2)
		return;
	pthread_mutex_lock(&c->lock);
	hami_known_wait(c, NULL);
	if (c->count == 1 && !c->making && !c->incomplete && !c->captures && !ended && !c->list[0].ending &&
	    !hami_known_leaving(c, c->list[0].key)) {
		const CUcontext context = c->list[0].context;
		begin_asking(c, c->list[0].key);
		if (real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
			visit();
			real->cuCtxPopCurrent_v2(&before);
		}
		end_asking(c);
	}
	pthread_mutex_unlock(&c->lock);
}
