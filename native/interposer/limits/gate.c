/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work is measured in batches of about BATCH_NS between two events; two batches may be in flight, so a
 * process is never more than those ahead of its budget. Other tenants' turns inside a batch are charged too
 * (an event cannot tell them apart), which errs on the side of the cap. Time in which nothing was outstanding is in no
 * batch of one stream: the second event is recorded after each launch, and the batch ends there if the next launch finds
 * the GPU idle. Of several streams one event does not say when all were done, so such a batch goes on.
 */
#include "limits/gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "arbitration/terms.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/table.h"
#include "driver/access.h"
#include "driver/rm_objects.h"
#include "limits/outstanding.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

#define BATCH_NS 2000000ll
#define BURST_NS 20000000ll /* budget saved up while idle */

struct batch {
	CUevent begin, end;
	bool open, closed;
	bool ended;   /* `end` is recorded after its last launch so far */
	bool several; /* its launches are on several streams */
	CUstream stream;
	pthread_t thread; /* of the first launch */
};

static struct gate {
	pthread_mutex_t lock;
	_Atomic bool is_open;
	_Atomic bool is_free; /* at the last launch the share was all of the GPU, so nothing was measured */
	uint32_t cores;       /* at the last launch */
	int64_t budget, budget_at; /* ns of GPU time; when it was last added to */
	struct batch batches[2];
	int current;
	int launches, launches_a_batch; /* the latter 0 before the first */
	CUcontext context;              /* whose events these are */
	_Atomic int64_t passed;         /* steady: the last launch */
} gates[HAMI_SLICES] = {[0 ... HAMI_SLICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

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
	for (int i = 0; i < 2; i++)
		g->batches[i] = (struct batch){.begin = g->batches[i].begin, .end = g->batches[i].end};
	g->launches = 0;
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

/* Waits for a closed batch and charges what it took. */
static void charge(struct gate *g, const struct real_cuda *real, struct batch *b)
{
	float ms = 0;
	if (!b->closed)
		return;
	b->closed = false;
	if (real->cuEventSynchronize(b->end) != CUDA_SUCCESS ||
	    real->cuEventElapsedTime(&ms, b->begin, b->end) != CUDA_SUCCESS)
		return;
	hami_region_note_use(region_of(g));
	int64_t took =
		ms > 0 ? (int64_t)((double)ms * 1e6) : 0; /* of two streams, the second may be done first */
	g->budget -= took;
	hami_region_add_time(region_of(g), (uint64_t)took, 0);
	if (took < BATCH_NS / 2 && g->launches_a_batch < 1000)
		g->launches_a_batch *= 2;
	else if (took > 2 * BATCH_NS && g->launches_a_batch > 1)
		g->launches_a_batch /= 2;
}

/* Waits until the budget is not negative. */
static void pay(struct gate *g)
{
	earn(g);
	if (g->budget >= 0)
		return;
	int64_t wait = -g->budget * 100 / g->cores;
	struct timespec t = {.tv_sec = wait / HAMI_NS_PER_S, .tv_nsec = wait % HAMI_NS_PER_S};
	nanosleep(&t, NULL);
	hami_region_add_time(region_of(g), 0, (uint64_t)wait);
	earn(g);
}

/* Makes events in the current context, if it is another one than before; false when there is none. */
static bool ready(struct gate *g, const struct real_cuda *real)
{
	CUcontext context = NULL;
	if (real->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return false;
	if (context == g->context)
		return true;
	for (int i = 0; i < 2; i++) {
		g->batches[i] = (struct batch){0};
		if (real->cuEventCreate(&g->batches[i].begin, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS ||
		    real->cuEventCreate(&g->batches[i].end, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
			return false;
	}
	g->context = context;
	g->launches = 0;
	return true;
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
	*b = (struct batch){.begin = b->begin, .end = b->end, .closed = true};
	return true;
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
	pthread_mutex_lock(&g->lock);
	g->cores = cores;
	if (g->is_free)
		begin_again(g);
	if (ready(g, real)) {
		struct batch *b = &g->batches[g->current];
		if (b->open && (++g->launches >= g->launches_a_batch || (idle && b->ended)) &&
		    end_batch(real, b, stream)) {
			g->current ^= 1;
			b = &g->batches[g->current];
		}
		if (!b->open) {
			charge(g, real, b);
			pay(g);
			g->launches = 0;
			hami_region_note_use(region_of(g));
			*b = (struct batch){
				.begin = b->begin, .end = b->end, .stream = stream, .thread = pthread_self()};
			b->open = real->cuEventRecord(b->begin, stream) == CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&g->lock);
}

void hami_gate_launched(unsigned int slice, void *opaque_stream, bool per_thread)
{
	struct gate *g = &gates[slice];
	const struct real_cuda *real = hami_cuda();
	CUstream stream = stream_of(opaque_stream, per_thread);
	CUcontext context = NULL;
	if (!real || !g->is_open || g->is_free || !runs_now(real, stream))
		return;
	pthread_mutex_lock(&g->lock);
	struct batch *b = &g->batches[g->current];
	/* Each thread has a per-thread stream of its own, and all have one name. */
	b->several |= stream != b->stream ||
		      (stream == CU_STREAM_PER_THREAD && !pthread_equal(pthread_self(), b->thread));
	b->ended = b->open && !b->several && real->cuCtxGetCurrent(&context) == CUDA_SUCCESS &&
		   context == g->context && real->cuEventRecord(b->end, stream) == CUDA_SUCCESS;
	pthread_mutex_unlock(&g->lock);
}

void hami_gate_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		hami_lock_renew(&gates[i].lock);
		if (!gates[i].is_open && !gates[i].context)
			continue;
		gates[i].is_open = false;
		gates[i].context = NULL;
	}
}
