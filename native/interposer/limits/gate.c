/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work is measured in batches of about BATCH_NS between two events; two batches may be in flight, so a
 * process is never more than those ahead of its budget. Other tenants' turns inside a batch are charged too
 * (an event cannot tell them apart), which errs on the side of the cap. Time in which nothing was outstanding is in no
 * batch of one stream: the second event is recorded after each launch, and the batch ends there if the next launch finds
 * the GPU idle. Of several streams one event does not say when all were done, so such a batch goes on.
 *
 * A context's end, which waits for its work, is that of its batches. Nothing else waits: what is done before is measured by
 * the events, which go with the context, and the rest took all of the time until then.
 */
#include "limits/gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "arbitration/terms.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/table.h"
#include "driver/access.h"
#include "driver/rm_objects.h"
#include "limits/known.h"
#include "limits/outstanding.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

#define BATCH_NS 2000000ll
#define BURST_NS 20000000ll /* budget saved up while idle */

struct batch {
	CUevent begin, end;
	bool open, closed;
	bool ended;    /* `end` is recorded after its last launch so far */
	bool several;  /* its launches are on several streams */
	int64_t begun; /* steady */
	CUstream stream;
	pthread_t thread; /* of the first launch */
};

/* What is measured of one context's launches. */
struct measured {
	CUcontext context;
	uint64_t owner; /* hami_known_owner(): another context may have the same handle later */
	struct batch batches[2];
	int current;
	int launches;
};

static struct gate {
	pthread_mutex_t lock;
	_Atomic bool is_open;
	_Atomic bool is_free; /* at the last launch the share was all of the GPU, so nothing was measured */
	uint32_t cores;       /* at the last launch */
	int64_t budget, budget_at; /* ns of GPU time; when it was last added to */
	struct measured *list;
	size_t count;
	int launches_a_batch;   /* 0 before the first */
	_Atomic int64_t passed; /* steady: the last launch */
} gates[HAMI_SLICES] = {[0 ... HAMI_SLICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static __thread bool has_lock __attribute__((tls_model("initial-exec")));

/* Takes the lock. A thread that was cancelled while it has it would keep it: returns whether it may be, for unlock(). */
static int lock(struct gate *g)
{
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_mutex_lock(&g->lock);
	has_lock = true;
	return state;
}

static void unlock(struct gate *g, int state)
{
	has_lock = false;
	pthread_mutex_unlock(&g->lock);
	pthread_setcancelstate(state, NULL);
}

static struct hami_region *region_of(const struct gate *g)
{
	return hami_slice_region((unsigned int)(g - gates));
}

void hami_gate_open(unsigned int slice)
{
	struct gate *g = &gates[slice];
	pthread_mutex_lock(&g->lock);
	g->is_open = true;
	g->budget_at = hami_clock_steady();
	if (!g->launches_a_batch)
		g->launches_a_batch = 1;
	pthread_mutex_unlock(&g->lock);
}

/* Returns the share of the slice now, percent: a resize of the job changes it. */
static uint32_t share_of(const struct gate *g)
{
	const struct hami_region *region = region_of(g);
	return hami_terms_read(region->job, region->step).cores_percent;
}

/* Forgets the batches of before a time in which nothing was measured. */
static void begin_again(struct gate *g)
{
	for (size_t n = 0; n < g->count; n++) {
		struct measured *m = &g->list[n];
		for (int i = 0; i < 2; i++)
			m->batches[i] =
				(struct batch){.begin = m->batches[i].begin, .end = m->batches[i].end};
		m->launches = 0;
	}
	g->budget_at = hami_clock_steady();
	g->is_free = false;
}

/* Adds what the clock has earned since the last call. */
static void earn(struct gate *g)
{
	int64_t now = hami_clock_steady();
	g->budget += (now - g->budget_at) * g->cores / 100;
	if (g->budget > BURST_NS)
		g->budget = BURST_NS;
	g->budget_at = now;
}

/* Calls cuEventSynchronize or cuEventQuery, and spoils no capture of the program by that. */
static CUresult ask(const struct real_cuda *real, CUresult(CUDAAPI *call)(CUevent), CUevent event)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (real->cuThreadExchangeStreamCaptureMode)
		real->cuThreadExchangeStreamCaptureMode(&mode);
	CUresult result = call(event);
	if (real->cuThreadExchangeStreamCaptureMode)
		real->cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}

/* Charges what a batch took. */
static void spend(struct gate *g, int64_t took)
{
	hami_region_note_use(region_of(g));
	g->budget -= took;
	hami_region_add_time(region_of(g), (uint64_t)took, 0);
	if (took < BATCH_NS / 2 && g->launches_a_batch < 1000)
		g->launches_a_batch *= 2;
	else if (took > 2 * BATCH_NS && g->launches_a_batch > 1)
		g->launches_a_batch /= 2;
}

/* Waits for a closed batch and charges what it took. */
static void charge(struct gate *g, const struct real_cuda *real, struct batch *b)
{
	float ms = 0;
	if (!b->closed)
		return;
	b->closed = false;
	if (ask(real, real->cuEventSynchronize, b->end) == CUDA_SUCCESS &&
	    real->cuEventElapsedTime(&ms, b->begin, b->end) == CUDA_SUCCESS)
		/* Of two streams, the second may be done first. */
		spend(g, ms > 0 ? (int64_t)((double)ms * 1e6) : 0);
}

/* Waits until the budget is not negative. */
static void pay(struct gate *g)
{
	earn(g);
	if (g->budget >= 0)
		return;
	int64_t wait = -g->budget * 100 / g->cores;
	hami_clock_sleep(wait);
	hami_region_add_time(region_of(g), 0, (uint64_t)wait);
	earn(g);
}

/* Returns what is measured of a context; NULL: nothing yet. */
static struct measured *find(const struct gate *g, CUcontext context, uint64_t owner)
{
	for (size_t i = 0; i < g->count; i++)
		if (g->list[i].context == context && g->list[i].owner == owner)
			return &g->list[i];
	return NULL;
}

/* Makes events in the current context; NULL when there are none to be had. */
static struct measured *add(struct gate *g, const struct real_cuda *real, CUcontext context, uint64_t owner)
{
	struct measured new = {.context = context, .owner = owner};
	struct measured *list = realloc(g->list, (g->count + 1) * sizeof *list);
	if (!list)
		return NULL;
	g->list = list;
	for (int i = 0; i < 2; i++)
		if (real->cuEventCreate(&new.batches[i].begin, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS ||
		    real->cuEventCreate(&new.batches[i].end, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
			return NULL;
	list[g->count] = new;
	return &list[g->count++];
}

/* Returns what is measured of the current context; NULL: nothing, or there is none. */
static struct measured *of_current(const struct gate *g, const struct real_cuda *real, CUcontext *context,
				   uint64_t *owner)
{
	*context = NULL;
	if (real->cuCtxGetCurrent(context) != CUDA_SUCCESS || !*context)
		return NULL;
	*owner = hami_known_owner((unsigned int)(g - gates), *context);
	return find(g, *context, *owner);
}

static CUstream stream_of(void *opaque_stream, bool per_thread)
{
	return opaque_stream ? (CUstream)opaque_stream : per_thread ? CU_STREAM_PER_THREAD : NULL;
}

/* A launch that is being captured runs nothing now; the graph's launch passes here again. */
static bool runs_now(const struct real_cuda *real, CUstream stream)
{
	CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
	return real->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
	       capture == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Returns whether the GPU has done all that was launched before; it is asked only after a pause. */
static bool was_idle(struct gate *g)
{
	const unsigned int slice = (unsigned int)(g - gates);
	int64_t now = hami_clock_steady(), passed = atomic_exchange(&g->passed, now);
	return now - passed > BATCH_NS &&
	       hami_outstanding_glance(slice, hami_objects_started(slice)) == HAMI_NOTHING_OUTSTANDING;
}

/* Ends the open batch: where its last launch ended, if that is known, else here. Returns whether it could. */
static bool end_batch(const struct real_cuda *real, struct batch *b, CUstream stream)
{
	if (!b->ended && real->cuEventRecord(b->end, stream) != CUDA_SUCCESS)
		return false;
	*b = (struct batch){.begin = b->begin, .end = b->end, .closed = true, .begun = b->begun};
	return true;
}

struct launch {
	CUstream stream;
	bool idle; /* the GPU had done all before it */
};

/* Ends a batch, and begins the next when it can be paid for. */
static void pass(struct gate *g, const struct real_cuda *real, struct measured *m,
		 const struct launch *launch)
{
	struct batch *b = &m->batches[m->current];
	if (b->open && (++m->launches >= g->launches_a_batch || (launch->idle && b->ended)) &&
	    end_batch(real, b, launch->stream)) {
		m->current ^= 1;
		b = &m->batches[m->current];
	}
	if (b->open)
		return;
	charge(g, real, b);
	pay(g);
	m->launches = 0;
	hami_region_note_use(region_of(g));
	*b = (struct batch){.begin = b->begin,
			    .end = b->end,
			    .stream = launch->stream,
			    .thread = pthread_self(),
			    .begun = hami_clock_steady()};
	b->open = real->cuEventRecord(b->begin, launch->stream) == CUDA_SUCCESS;
}

void hami_gate_pass(unsigned int slice, void *opaque_stream, bool per_thread)
{
	struct gate *g = &gates[slice];
	const struct real_cuda *real = hami_cuda();
	CUstream stream = stream_of(opaque_stream, per_thread);
	if (!real || !g->is_open)
		return;
	uint32_t cores = share_of(g);
	if (cores >= 100) {
		g->is_free = true;
		return;
	}
	if (!runs_now(real, stream))
		return;
	const bool idle = was_idle(g);
	CUcontext context;
	uint64_t owner;
	const int state = lock(g);
	g->cores = cores;
	if (g->is_free)
		begin_again(g);
	struct measured *m = of_current(g, real, &context, &owner);
	if (!m && context)
		m = add(g, real, context, owner);
	if (m)
		pass(g, real, m, &(struct launch){stream, idle});
	unlock(g, state);
}

void hami_gate_launched(unsigned int slice, void *opaque_stream, bool per_thread)
{
	struct gate *g = &gates[slice];
	const struct real_cuda *real = hami_cuda();
	CUstream stream = stream_of(opaque_stream, per_thread);
	CUcontext context;
	uint64_t owner;
	if (!real || !g->is_open || g->is_free || !runs_now(real, stream))
		return;
	const int state = lock(g);
	struct measured *m = of_current(g, real, &context, &owner);
	if (m) {
		struct batch *b = &m->batches[m->current];
		/* Each thread has a per-thread stream of its own, and all have one name. */
		b->several |= stream != b->stream ||
			      (stream == CU_STREAM_PER_THREAD && !pthread_equal(pthread_self(), b->thread));
		b->ended = b->open && !b->several && real->cuEventRecord(b->end, stream) == CUDA_SUCCESS;
	}
	unlock(g, state);
}

/* Charges those batches of a context that are done. */
static void charge_done(struct gate *g, const struct real_cuda *real, struct measured *m)
{
	for (int i = 0; i < 2; i++) {
		struct batch *b = &m->batches[i];
		if ((!b->closed && !(b->open && b->ended)) ||
		    ask(real, real->cuEventQuery, b->end) != CUDA_SUCCESS)
			continue;
		*b = (struct batch){.begin = b->begin, .end = b->end, .closed = true};
		charge(g, real, b);
	}
}

/* Charges the others, up to now. */
static void charge_rest(struct gate *g, const struct measured *m)
{
	int64_t now = hami_clock_steady(), begun = now;
	for (int i = 0; i < 2; i++)
		if ((m->batches[i].open || m->batches[i].closed) && m->batches[i].begun < begun)
			begun = m->batches[i].begun;
	if (begun < now)
		spend(g, now - begun);
}

/* This may be an exit from a signal's handler, in a thread that has the lock: nothing is measured then. */
static void end_batches(struct gate *g, uint64_t owner, bool gone)
{
	const struct real_cuda *real = hami_cuda();
	if (!g->is_open || has_lock)
		return;
	const int state = lock(g);
	for (size_t n = g->count; n-- > 0;) {
		if (g->list[n].owner != owner)
			continue;
		if (!gone && !g->is_free && real)
			charge_done(g, real, &g->list[n]);
		if (gone && !g->is_free)
			charge_rest(g, &g->list[n]);
		if (gone)
			g->list[n] = g->list[--g->count];
	}
	unlock(g, state);
}

void hami_gate_end_context(uint64_t owner, bool gone)
{
	for (unsigned int i = 0; owner && i < hami_slice_count(); i++)
		end_batches(&gates[i], owner, gone);
}

void hami_gate_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		hami_lock_renew(&gates[i].lock);
		has_lock = false;
		if (!gates[i].is_open && !gates[i].list)
			continue;
		gates[i].is_open = false;
		gates[i].list = NULL; /* the parent's: another thread may have been changing it */
		gates[i].count = 0;
	}
}
