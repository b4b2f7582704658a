/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture that begins waits for a look under way on its own GPU, and not for one on another GPU, which may take for
 * ever (limits/outstanding.h). With a libcuda of the test's own, whose recordings take as long as it likes.
 */
#include "../../../native/interposer/base/lock.c"
#include "../../../native/interposer/limits/known.c"
#include "../../../native/interposer/limits/outstanding.c"

#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static atomic_bool recording, may_end;
static int current;

static CUresult record(CUcontext context, CUevent event)
{
	(void)context, (void)event;
	recording = true;
	while (!may_end)
		usleep(1000);
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	*context = NULL;
	return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned int flags)
{
	*event = (CUevent)(uintptr_t)(1 + flags);
	return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

const struct real_cuda *hami_resolved_cuda(void)
{
	static const struct real_cuda real = {.cuCtxRecordEvent = record,
					      .cuCtxPushCurrent_v2 = push,
					      .cuCtxPopCurrent_v2 = pop,
					      .cuEventCreate = create,
					      .cuEventQuery = query};
	return &real;
}

unsigned int hami_slice_count(void)
{
	return 2;
}

int hami_current_slice(const struct real_cuda *real)
{
	(void)real;
	return current;
}

bool hami_objects_of_context(unsigned int slice, uint64_t context)
{
	(void)slice, (void)context;
	return false;
}

static void *look_there(void *unused)
{
	(void)unused;
	CHECK(hami_outstanding_look(1, 1) == HAMI_NOTHING_OUTSTANDING);
	return NULL;
}

static void *end_soon(void *unused)
{
	(void)unused;
	usleep(100000);
	may_end = true;
	return NULL;
}

static int64_t capture_takes(void)
{
	int64_t begun = hami_clock_steady();
	hami_outstanding_capture(true);
	int64_t took = hami_clock_steady() - begun;
	hami_outstanding_capture(false);
	return took;
}

int main(void)
{
	pthread_t looker, ender;
	static const char context;
	alarm(20); /* where it waits for ever */
	hami_known_add(1, (CUcontext)(uintptr_t)&context, &context);
	CHECK(pthread_create(&looker, NULL, look_there, NULL) == 0);
	while (!recording)
		usleep(1000);
	current = 0;
	CHECK(capture_takes() < 90000000); /* the look goes on */
	CHECK(hami_known[1].asked != NULL && !may_end);
	CHECK(hami_outstanding_look(0, 0) == HAMI_NOTHING_OUTSTANDING); /* nor does a look here wait for it */
	current = 1;
	CHECK(pthread_create(&ender, NULL, end_soon, NULL) == 0);
	CHECK(capture_takes() >= 50000000);
	CHECK(may_end);
	CHECK(pthread_join(looker, NULL) == 0 && pthread_join(ender, NULL) == 0);
	hami_outstanding_capture(true); /* stops the looks on both */
	CHECK(hami_outstanding_look(0, 0) == HAMI_OUTSTANDING_UNKNOWN);
	CHECK(hami_outstanding_look(1, 1) == HAMI_OUTSTANDING_UNKNOWN);
	hami_outstanding_capture(false);
	return 0;
}
