/* SPDX-License-Identifier: Apache-2.0 */
/*
 * two_streams MS LONG_US
 *
 * For MS milliseconds, in turn: a kernel of LONG_US on one stream, one of 10 us on another, waits for both, and rests for
 * 5 ms. Prints the percentage of that time that the long kernels ran.
 */
#include <time.h>

#include "../interposer/check.h"

int main(int argc, char **argv)
{
	const struct timespec rest = {.tv_nsec = 5000000};
	CUmodule module;
	CUfunction kernel;
	CUstream first, second;
	CHECK(argc == 3);
	uint64_t long_ns = (uint64_t)atoll(argv[2]) * 1000, short_ns = 10000, count = 0;
	void *of_first[] = {&long_ns}, *of_second[] = {&short_ns};
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	double begin = now_ms();
	for (; now_ms() < begin + atof(argv[1]); count++) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, first, of_first, NULL));
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, second, of_second, NULL));
		OK(cuStreamSynchronize(first));
		OK(cuStreamSynchronize(second));
		nanosleep(&rest, NULL);
	}
	printf("%.1f\n", 100.0 * (double)(count * long_ns) * 1e-6 / (now_ms() - begin));
	return 0;
}
