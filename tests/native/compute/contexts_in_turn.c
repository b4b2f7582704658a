/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts_in_turn MS COUNT
 *
 * For MS milliseconds kernels of 1 ms, each in the next one of COUNT contexts. Prints the percentage of that time that they
 * ran.
 */
#include "../interposer/check.h"

int main(int argc, char **argv)
{
	CUcontext contexts[16];
	CUfunction kernels[16];
	CUmodule module;
	uint64_t ns = 1000000, ran = 0;
	void *params[] = {&ns};
	CHECK(argc == 3);
	const size_t count = strtoul(argv[2], NULL, 10);
	CHECK(count > 0 && count <= 16);
	OK(cuInit(0));
	for (size_t i = 0; i < count; i++) {
		OK(cuCtxCreate(&contexts[i], NULL, 0, 0));
		OK(cuModuleLoadData(&module, "image"));
		OK(cuModuleGetFunction(&kernels[i], module, "sim_spin_ns"));
	}
	const double begin = now_ms();
	for (; now_ms() < begin + atof(argv[1]); ran++) {
		OK(cuCtxSetCurrent(contexts[ran % count]));
		OK(cuLaunchKernel(kernels[ran % count], 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		if (ran % 4 == 3)
			OK(cuCtxSynchronize());
	}
	printf("%.1f\n", 100.0 * (double)ran / (now_ms() - begin));
	return 0;
}
