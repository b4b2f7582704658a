/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures in all three modes on several threads beside a thread that launches, for a second under a cap. Each ends
 * as it would without one; so does what is no end: of a stream that does not capture, on a handle that is none.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../interposer/check.h"

enum { MODES = 3, THREADS };

static CUcontext context;
static CUfunction kernel;
static atomic_bool over;

static void spin(CUstream stream, uint64_t ns)
{
	void *params[] = {&ns};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void *capture(void *mode)
{
	CUstream stream, other;
	CUgraph graph, none;
	CUgraphExec exec;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	while (!over) {
		OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)(uintptr_t)mode));
		CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS);
		CHECK(cuStreamEndCapture(other, &none) != CUDA_SUCCESS);
		CHECK(cuStreamEndCapture(stream, NULL) != CUDA_SUCCESS);
		for (int i = 0; i < 5; i++) {
			spin(stream, 10000);
			usleep(1000);
		}
		OK(cuStreamEndCapture(stream, &graph));
		OK(cuGraphInstantiate(&exec, graph, 0));
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuGraphExecDestroy(exec));
		OK(cuGraphDestroy(graph));
	}
	return NULL;
}

/* No end of a capture: this thread has no context. */
static void *end_nothing(void *unused)
{
	CUgraph none;
	for (; !over; usleep(500))
		GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamEndCapture(NULL, &none));
	return unused;
}

int main(void)
{
	CUmodule module;
	CUstream stream;
	pthread_t threads[THREADS];
	start();
	OK(cuCtxGetCurrent(&context));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, i < MODES ? capture : end_nothing, (void *)i) == 0);
	for (time_t end = time(NULL) + 2; time(NULL) < end;) {
		spin(stream, 500000);
		OK(cuStreamSynchronize(stream));
	}
	over = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}
