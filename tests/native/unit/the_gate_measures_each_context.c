/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate makes events of its own for each context, and uses none of a context that is gone in the next one with the same
 * handle, as a primary context has after a reset. What it had is charged (limits/gate.h). With a libcuda of the test's own.
 */
#include "../../../native/interposer/base/lock.c"
#include "../../../native/interposer/limits/gate.c"
#include "../../../native/interposer/limits/known.c"

#include <unistd.h>

#include "check.h"

static struct hami_limits limits = {.cores_percent = 20};
static struct hami_region region = {.job = &limits, .step = &limits, .slot = -1};
static struct hami_usage_file usage;
static CUcontext current;
static uintptr_t made, first_alive; /* events: those before the first one are gone */
static int recorded;
static bool is_busy;

static CUresult get_current(CUcontext *context)
{
	*context = current;
	return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned int flags)
{
	CHECK(flags == CU_EVENT_BLOCKING_SYNC);
	*event = (CUevent)++made;
	return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
	(void)stream;
	CHECK((uintptr_t)event >= first_alive);
	recorded++;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUevent event)
{
	CHECK((uintptr_t)event >= first_alive);
	return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
	CHECK((uintptr_t)event >= first_alive);
	return is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent begin, CUevent end)
{
	CHECK((uintptr_t)begin >= first_alive && (uintptr_t)end >= first_alive);
	*ms = 0.5f;
	return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

const struct real_cuda *hami_cuda(void)
{
	static const struct real_cuda real = {.cuCtxGetCurrent = get_current,
					      .cuEventCreate = create,
					      .cuEventRecord = record,
					      .cuEventSynchronize = synchronize,
					      .cuEventQuery = query,
					      .cuEventElapsedTime = elapsed,
					      .cuStreamIsCapturing = is_capturing};
	return &real;
}

struct hami_region *hami_slice_region(unsigned int slice)
{
	(void)slice;
	return &region;
}

unsigned int hami_slice_count(void)
{
	return 1;
}

int hami_objects_started(unsigned int slice)
{
	return (int)slice;
}

bool hami_objects_of_context(unsigned int slice, uint64_t context)
{
	(void)slice, (void)context;
	return false;
}

enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups)
{
	(void)slice, (void)groups;
	return HAMI_OUTSTANDING_UNKNOWN;
}

void hami_region_note_use(struct hami_region *its)
{
	CHECK(its == &region);
}

static void launch_in(CUcontext context)
{
	current = context;
	hami_gate_pass(0, NULL, false);
	hami_gate_launched(0, NULL, false);
}

int main(void)
{
	static const char primary, other;
	const CUcontext handle = (CUcontext)(uintptr_t)&primary, second = (CUcontext)(uintptr_t)&other;
	region.usage = &usage;
	hami_gate_open(0);
	hami_known_add(0, handle, &primary);
	hami_known_add(0, second, &other);
	for (int i = 0; i < 10; i++) {
		launch_in(handle);
		launch_in(second);
	}
	CHECK(made == 8); /* two batches of each */
	CHECK(gates[0].launches_a_batch > 1);

	/* A reset. */
	int64_t before = gates[0].budget;
	const uint64_t owner = hami_known_leave(0, &primary, true, false);
	CHECK(owner);
	hami_gate_end_context(owner, false);
	CHECK(gates[0].budget <= before - 500000); /* the batch that was open */
	before = gates[0].budget;
	hami_gate_end_context(owner, true);
	CHECK(gates[0].budget == before);
	hami_known_leave(0, &primary, false, true);
	launch_in(second);
	CHECK(made == 8);
	hami_known_add(0, handle, &primary);
	recorded = 0;
	first_alive = made + 1;
	launch_in(handle);
	launch_in(handle);
	CHECK(made == 12 && recorded > 0);
	CHECK(gates[0].count == 2);

	/* The end of a context with work, which waits for it. */
	is_busy = true;
	const uint64_t its = hami_known_leave(0, &primary, true, false);
	before = gates[0].budget;
	hami_gate_end_context(its, false);
	CHECK(gates[0].budget == before);
	usleep(20000);
	hami_known_leave(0, &primary, false, true);
	hami_gate_end_context(its, true);
	CHECK(gates[0].budget <= before - 20000000);
	CHECK(gates[0].count == 1);
	return 0;
}
