/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void a_kernel_takes_what_it_says(CUfunction f)
{
	CUstream stream;
	CUevent from, to;
	float ms;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
	uint64_t start = now_ns();
	OK(cuEventRecord(from, stream));
	spin(f, stream, 100 * MS);
	OK(cuEventRecord(to, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream)); /* launching does not wait */
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(to));
	GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, from, to));
	OK(cuStreamSynchronize(stream));
	CHECK(now_ns() - start >= 100 * MS);
	OK(cuStreamQuery(stream));
	OK(cuEventElapsedTime(&ms, from, to));
	CHECK(ms >= 100.0f && (double)ms <= (double)(now_ns() - start) * 1e-6);
	OK(cuEventDestroy(from));
	OK(cuEventDestroy(to));
	OK(cuStreamDestroy(stream));
}

/* However late one asks, an event tells when it happened, to the nanosecond of the timeline. */
static void events_remember(CUfunction f)
{
	enum { COUNT = 50 };
	CUevent event[COUNT];
	float ms;
	spin(f, NULL, 100 * MS); /* while it runs, all that follows is queued */
	for (int i = 0; i < COUNT; i++) {
		OK(cuEventCreate(&event[i], CU_EVENT_DEFAULT));
		OK(cuEventRecord(event[i], NULL));
		spin(f, NULL, MS);
	}
	usleep(200000);
	for (int i = 1; i < COUNT; i++) {
		OK(cuEventElapsedTime(&ms, event[i - 1], event[i]));
		CHECK(ms > 0.9999f && ms < 1.0001f);
	}
	OK(cuCtxSynchronize());
}

static void the_null_stream_waits_for_blocking_ones(CUfunction f)
{
	CUstream blocking, free_running;
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
	spin(f, blocking, 60 * MS);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuStreamQuery(blocking));
	spin(f, free_running, 60 * MS);
	OK(cuStreamQuery(NULL));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(free_running));
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(free_running));
	OK(cuStreamDestroy(blocking));
	OK(cuStreamDestroy(free_running));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(NULL));
}

/* A launch queue is 1024 deep: a loop without synchronisation is held back. */
static void a_full_queue_holds_the_launch(CUfunction f)
{
	uint64_t start = now_ns();
	for (int i = 0; i < 1024; i++)
		spin(f, NULL, 100000);
	GIVES(CUDA_ERROR_NOT_READY,
	      cuStreamQuery(NULL)); /* 102 ms of work: the first 1024 did not wait for it */
	for (int i = 0; i < 1024; i++)
		spin(f, NULL, 100000);
	CHECK(now_ns() - start >= 102 * MS);
	OK(cuCtxSynchronize());
}

int main(void)
{
	CUcontext context;
	make_machine("h200");
	context = open_device();
	CUfunction f = spin_function();
	a_kernel_takes_what_it_says(f);
	events_remember(f);
	the_null_stream_waits_for_blocking_ones(f);
	a_full_queue_holds_the_launch(f);
	CHECK(state_number("busy_ns") == (long long)(100 * MS + 150 * MS + 120 * MS + 2048 * 100000));
	OK(cuCtxDestroy(context));
	return 0;
}
