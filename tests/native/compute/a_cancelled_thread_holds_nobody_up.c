/* SPDX-License-Identifier: Apache-2.0 */
/*
 * a_cancelled_thread_holds_nobody_up captures|launches
 *
 * Threads that are cancelled within such calls, one after the other: whoever makes one afterwards does not wait for ever.
 */
#include <pthread.h>
#include <string.h>

#include "../interposer/check.h"

static CUcontext context;
static CUfunction kernel;

static void capture(CUstream stream)
{
	CUgraph graph;
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphDestroy(graph));
}

static void launch(CUstream stream)
{
	uint64_t ns = 5000000;
	void *params[] = {&ns};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void *call_for_ever(void *call)
{
	CUstream stream;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (;; pthread_testcancel())
		(*(void (**)(CUstream))call)(stream);
	return NULL;
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUstream stream;
	CHECK(argc == 2);
	void (*call)(CUstream) = strcmp(argv[1], "captures") == 0 ? capture : launch;
	alarm(20); /* where it waits for ever */
	start();
	OK(cuCtxGetCurrent(&context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	launch(stream);
	for (int i = 0; i < 10; i++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, call_for_ever, &call) == 0);
		usleep(50000);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		call(stream);
	}
	return 0;
}
