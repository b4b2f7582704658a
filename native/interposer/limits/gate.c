/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work is measured in batches of about BATCH_NS between two events; two batches may be in flight, so a
 * process is never more than those ahead of its budget. Other tenants' turns inside a batch are charged too
 * (an event cannot tell them apart), which errs on the side of the cap.
 */
#include "limits/gate.h"

#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "driver/access.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

#define BATCH_NS 2000000ll
#define BURST_NS 20000000ll /* budget saved up while idle */

struct batch {
	CUevent begin, end;
	bool open, closed;
};

static struct {
	pthread_mutex_t lock;
	uint32_t cores;
	int64_t budget, budget_at; /* ns of GPU time; when it was last added to */
	struct batch batches[2];
	int current;
	int launches, launches_a_batch;
	CUcontext context; /* whose events these are */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .launches_a_batch = 1};

void hami_gate_open(uint32_t cores)
{
	pthread_mutex_lock(&gate.lock);
	gate.cores = cores;
	gate.budget_at = hami_clock_steady();
	pthread_mutex_unlock(&gate.lock);
}

/* Adds what the clock has earned since the last call. */
static void earn(void)
{
	int64_t now = hami_clock_steady();
	gate.budget += (now - gate.budget_at) * gate.cores / 100;
	if (gate.budget > BURST_NS)
		gate.budget = BURST_NS;
	gate.budget_at = now;
}

/* Waits for a closed batch and charges what it took. */
static void charge(const struct real_cuda *real, struct batch *b)
{
	float ms = 0;
	if (!b->closed)
		return;
	b->closed = false;
	if (real->cuEventSynchronize(b->end) != CUDA_SUCCESS ||
	    real->cuEventElapsedTime(&ms, b->begin, b->end) != CUDA_SUCCESS)
		return;
	hami_region_note_use(hami_region());
	int64_t took = (int64_t)((double)ms * 1e6);
	gate.budget -= took;
	hami_region_add_time(hami_region(), (uint64_t)took, 0);
	if (took < BATCH_NS / 2 && gate.launches_a_batch < 1000)
		gate.launches_a_batch *= 2;
	else if (took > 2 * BATCH_NS && gate.launches_a_batch > 1)
		gate.launches_a_batch /= 2;
}

/* Waits until the budget is not negative. */
static void pay(void)
{
	earn();
	if (gate.budget >= 0)
		return;
	int64_t wait = -gate.budget * 100 / gate.cores;
	struct timespec t = {.tv_sec = wait / HAMI_NS_PER_S, .tv_nsec = wait % HAMI_NS_PER_S};
	nanosleep(&t, NULL);
	hami_region_add_time(hami_region(), 0, (uint64_t)wait);
	earn();
}

/* Makes events in the current context, if it is another one than before; false when there is none. */
static bool ready(const struct real_cuda *real)
{
	CUcontext context = NULL;
	if (real->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
		return false;
	if (context == gate.context)
		return true;
	for (int i = 0; i < 2; i++) {
		gate.batches[i] = (struct batch){0};
		if (real->cuEventCreate(&gate.batches[i].begin, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS ||
		    real->cuEventCreate(&gate.batches[i].end, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
			return false;
	}
	gate.context = context;
	gate.launches = 0;
	return true;
}

void hami_gate_pass(void *opaque_stream, bool per_thread)
{
	const struct real_cuda *real = hami_cuda();
	CUstream stream = opaque_stream ? (CUstream)opaque_stream : per_thread ? CU_STREAM_PER_THREAD : NULL;
	CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
	/* A launch that is being captured runs nothing now; the graph's launch passes here again. */
	if (!real || !gate.cores || real->cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS ||
	    capture != CU_STREAM_CAPTURE_STATUS_NONE)
		return;
	pthread_mutex_lock(&gate.lock);
	if (ready(real)) {
		struct batch *b = &gate.batches[gate.current];
		if (b->open && ++gate.launches >= gate.launches_a_batch &&
		    real->cuEventRecord(b->end, stream) == CUDA_SUCCESS) {
			b->open = false;
			b->closed = true;
			gate.current ^= 1;
			b = &gate.batches[gate.current];
		}
		if (!b->open) {
			charge(real, b);
			pay();
			gate.launches = 0;
			hami_region_note_use(hami_region());
			b->open = real->cuEventRecord(b->begin, stream) == CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&gate.lock);
}

void hami_gate_forked(void)
{
	hami_lock_renew(&gate.lock);
	if (!gate.cores && !gate.context)
		return;
	gate.cores = 0;
	gate.context = NULL;
}
