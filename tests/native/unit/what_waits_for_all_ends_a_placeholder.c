/* SPDX-License-Identifier: Apache-2.0 */
/* A placeholder does not keep a program from what it waits for (hooks/sync.c). With a libcuda of the test's own. */
#include "../../../native/interposer/hooks/sync.c"

#include "check.h"

_Atomic int64_t hami_latency_begun;
static int ended, called;

void hami_latency_waited(void)
{
}

void hami_placeholder_end(void)
{
	ended++;
}

void hami_mps_say(CUresult result)
{
	CHECK(result == CUDA_SUCCESS);
}

static CUresult wait_for_all(void)
{
	CHECK(ended == ++called); /* before it is waited for */
	return CUDA_SUCCESS;
}

static CUresult wait_for_context(CUcontext context)
{
	(void)context;
	return wait_for_all();
}

static CUresult wait_for_one(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

const struct real_cuda *hami_cuda(void)
{
	static const struct real_cuda real = {.cuCtxSynchronize = wait_for_all,
					      .cuCtxSynchronize_v2 = wait_for_context,
					      .cuStreamSynchronize = wait_for_one};
	return &real;
}

int main(void)
{
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS && called == 1);
	CHECK(cuCtxSynchronize_v2(NULL) == CUDA_SUCCESS && called == 2);
	CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS && ended == 2); /* it waits for no other stream */
	return 0;
}
