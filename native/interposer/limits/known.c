/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/known.h"

#include <stdlib.h>

#include "base/lock.h"
#include "driver/rm_objects.h"
#include "region/process.h"

struct contexts hami_known[HAMI_SLICES] = {
	[0 ... HAMI_SLICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER}};

static _Thread_local uint64_t making; /* the number of the context that this thread makes; 0: none */

void hami_known_wait(struct contexts *c, const void *key)
{
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &state); /* a thread that ended here would keep the lock */
	while (c->asked && (!key || c->asked == key))
		pthread_cond_wait(&c->answered, &c->lock);
	pthread_setcancelstate(state, NULL);
}

static struct known entry(struct contexts *c, CUcontext context, const void *key)
{
	return (struct known){.key = key,
			      .context = context,
			      .made = making ? making : ++c->made,
			      .last = HAMI_OUTSTANDING_UNKNOWN};
}

void hami_known_add(unsigned int slice, CUcontext context, const void *key)
{
	struct contexts *c = &hami_known[slice];
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
		if (is_new || hami_known_leaving(c, key) || c->list[i].ending ||
		    c->list[i].context != context)
			c->list[i] = entry(c, context, key);
		else if (makes)
			c->list[i].made = making; /* a thread that asked for it meanwhile added it first */
		c->list[i].anew = true;
	}
	pthread_mutex_unlock(&c->lock);
}

void hami_known_make(unsigned int slice, bool begins)
{
	struct contexts *c = &hami_known[slice];
	pthread_mutex_lock(&c->lock);
	c->making = begins ? c->making + 1 : c->making - (c->making > 0);
	making = begins ? ++c->made : 0;
	pthread_mutex_unlock(&c->lock);
}

/* Returns what hami_known_owner() promises of the context with this number on a slice's GPU. */
static uint64_t owner(const struct contexts *c, uint64_t made)
{
	return made * HAMI_SLICES + (uint64_t)(c - hami_known);
}

unsigned int hami_known_slice(uint64_t its_owner)
{
	return its_owner % HAMI_SLICES;
}

uint64_t hami_known_owner(unsigned int slice, CUcontext context)
{
	struct contexts *c = &hami_known[slice];
	uint64_t found = 0;
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->count && !found; i++) {
		const struct known *k = &c->list[i];
		if (k->context == context && !k->ending && !hami_known_leaving(c, k->key))
			found = owner(c, k->made);
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

/* Returns the owner that the context was; 0: it is not on this slice's GPU. */
static uint64_t end_context(struct contexts *c, const void *key, bool begins)
{
	uint64_t found = 0;
	pthread_mutex_lock(&c->lock);
	if (begins)
		hami_known_wait(c, key);
	for (size_t i = 0; i < c->count; i++) {
		if (c->list[i].key != key || (!begins && !c->list[i].ending))
			continue;
		found = owner(c, c->list[i].made);
		if (begins)
			c->list[i].ending = true;
		else
			c->list[i] = c->list[--c->count];
		break;
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

uint64_t hami_known_end_context(const void *key, bool begins)
{
	uint64_t found = 0;
	for (unsigned int i = 0; i < hami_slice_count(); i++) {
		const uint64_t one = end_context(&hami_known[i], key, begins);
		found = one ? one : found;
	}
	return found;
}

uint64_t hami_known_leave(unsigned int slice, const void *key, bool begins, bool gone)
{
	struct contexts *c = &hami_known[slice];
	uint64_t found = 0;
	pthread_mutex_lock(&c->lock);
	c->leaving += begins ? 1 : -1;
	c->leaving_key = key;
	if (begins)
		hami_known_wait(c, key);
	for (size_t i = 0; i < c->count; i++) {
		struct known *k = &c->list[i];
		if (k->key != key)
			continue;
		found = owner(c, k->made);
		if (begins && c->leaving == 1) {
			k->anew = false;
		} else if (!begins && gone && !k->anew) {
			*k = c->list[--c->count];
			break;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

void hami_known_pause(unsigned int slice, const uint64_t *paused, size_t count)
{
	struct contexts *c = &hami_known[slice];
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->count; i++) {
		size_t p = 0;
		while (p < count && paused[p] != c->list[i].made)
			p++;
		c->list[i].paused = p < count;
	}
	pthread_mutex_unlock(&c->lock);
}

size_t hami_known_answers(unsigned int slice, struct hami_answer *list, size_t most)
{
	struct contexts *c = &hami_known[slice];
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

uint64_t hami_known_making(void)
{
	return making;
}

/* Returns whether the slice has so many contexts, without those being destroyed, and sets the last of them. */
static bool has_contexts(unsigned int slice, size_t wanted, CUcontext *context)
{
	struct contexts *c = &hami_known[slice];
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

CUcontext hami_known_only(unsigned int slice)
{
	CUcontext context = NULL;
	return has_contexts(slice, 1, &context) ? context : NULL;
}

bool hami_known_none(unsigned int slice)
{
	return has_contexts(slice, 0, &(CUcontext){NULL});
}

bool hami_known_captures(unsigned int slice)
{
	struct contexts *c = &hami_known[slice];
	pthread_mutex_lock(&c->lock);
	const bool captures = c->captures > 0;
	pthread_mutex_unlock(&c->lock);
	return captures;
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

void hami_known_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++)
		forget(&hami_known[i]);
}
