/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture whose stream is destroyed, as by a program that gives up. Prints how many requests of 13 us of work, each a
 * millisecond after the last one, were done in two seconds.
 */
#include "../interposer/check.h"

int main(void)
{
	CUmodule module;
	CUfunction kernel;
	CUstream stream;
	uint64_t ns = 13000;
	unsigned int requests = 0;
	void *params[] = {&ns};
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuStreamDestroy(stream));
	for (double end = now_ms() + 2000; now_ms() < end; requests++) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		usleep(1000);
	}
	printf("%u\n", requests);
	return 0;
}
