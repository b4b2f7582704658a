/* SPDX-License-Identifier: Apache-2.0 */
/*
 * a_capture_ends_with_its_stream WHAT: a capture whose stream is destroyed, as by a program that gives up, or the context
 * of which is: stream, context, reset (of the primary one). Prints how many requests of 13 us of work, each a millisecond
 * after the last one, were done in two seconds.
 */
#include "../interposer/check.h"
#include <string.h>

static void begin(CUstream *stream)
{
	OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(*stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	CUstream stream;
	uint64_t ns = 13000;
	unsigned int requests = 0;
	void *params[] = {&ns};
	CHECK(argc == 2);
	start();
	if (!strcmp(argv[1], "context")) {
		OK(cuCtxCreate(&context, NULL, 0, 0));
		begin(&stream);
		OK(cuCtxDestroy(context));
	} else if (!strcmp(argv[1], "reset")) {
		begin(&stream);
		OK(cuDevicePrimaryCtxReset(0));
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		OK(cuCtxSetCurrent(context));
	} else {
		begin(&stream);
		OK(cuStreamDestroy(stream));
	}
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	for (double end = now_ms() + 2000; now_ms() < end; requests++) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		usleep(1000);
	}
	printf("%u\n", requests);
	return 0;
}
