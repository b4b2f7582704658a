/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allocates_and_works MS
 *
 * Takes and returns memory, and runs a kernel, over and over for MS milliseconds. Prints the longest time that
 * one such round took, ms, and how many there were. A refusal for lack of the record's lock is no error here.
 */
#include "../interposer/check.h"

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 200000;
	void *params[] = {&ns};
	CHECK(argc == 2);
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	double longest = 0, end = now_ms() + atof(argv[1]);
	int count = 0;
	for (double begin = now_ms(), last; begin < end; begin = last, count++) {
		for (int i = 0; i < 20; i++) {
			CUdeviceptr memory;
			CUresult result = cuMemAlloc(&memory, 4 << 20);
			CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
			if (result == CUDA_ERROR_OUT_OF_MEMORY)
				break;
			OK(cuMemFree(memory));
		}
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		last = now_ms();
		longest = last - begin > longest ? last - begin : longest;
	}
	printf("%.1f %d\n", longest, count);
	return 0;
}
