/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void wait_a_while(void *unused)
{
	(void)unused;
	usleep(50000);
}

/* Work in any stream, also one that the NULL stream does not wait for, and what was put in after it. */
static void all_streams_count(CUcontext context, CUfunction f)
{
	CUstream stream[3];
	CUevent event;
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuCtxRecordEvent(context, event));
	OK(cuEventQuery(event)); /* nothing is outstanding */
	for (int i = 0; i < 3; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	for (int i = 2; i >= 0; i--) {
		spin(f, stream[i], 40 * MS);
		OK(cuCtxRecordEvent(context, event));
		GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
		uint64_t start = now_ns();
		OK(cuStreamSynchronize(stream[i]));
		OK(cuEventQuery(event));
		CHECK(now_ns() - start >= 20 * MS);
	}
	spin(f, stream[1], 40 * MS);
	OK(cuCtxRecordEvent(context, event));
	spin(f, stream[2], 200 * MS);
	OK(cuEventSynchronize(event));
	OK(cuStreamQuery(stream[1]));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream[2])); /* was not there yet */
	OK(cuCtxSynchronize());
	OK(cuLaunchHostFunc(stream[0], wait_a_while, NULL));
	OK(cuCtxRecordEvent(context, event));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	OK(cuCtxSynchronize());
	OK(cuEventQuery(event));
}

static void a_context_waits(CUcontext context, CUfunction f)
{
	CUstream a, b;
	CUevent event;
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	spin(f, a, 50 * MS);
	OK(cuEventRecord(event, a));
	OK(cuStreamQuery(b));
	OK(cuCtxWaitEvent(context, event));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
	OK(cuStreamSynchronize(b));
	OK(cuEventQuery(event));
}

/* As NVIDIA's header says: refused, and the capture is lost. */
static void a_capture_stands_in_the_way(CUcontext context)
{
	CUstream stream;
	CUevent event;
	CUgraph graph;
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(context, event));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuCtxRecordEvent(context, event));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxWaitEvent(context, event));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
}

int main(void)
{
	CUcontext none;
	CUevent event;
	make_machine("h200");
	CUcontext context = open_device();
	CUfunction f = spin_function();
	all_streams_count(context, f);
	a_context_waits(context, f);
	a_capture_stands_in_the_way(context);
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent(NULL, event));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxWaitEvent(NULL, event));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(context, NULL));
	OK(cuCtxPopCurrent(&none));
	OK(cuCtxRecordEvent(context, event)); /* it need not be current */
	return 0;
}
