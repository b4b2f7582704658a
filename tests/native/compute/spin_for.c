/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin_for MS KERNEL_US [IDLE_MS]
 *
 * Keeps the simulated GPU busy for MS milliseconds with kernels of KERNEL_US and prints the percentage of
 * that time that they ran. With IDLE_MS it does so twice, idle for so long in between, and prints both.
 */
#include "../interposer/check.h"

static double share(CUfunction kernel, double span_ms, uint64_t kernel_us)
{
	uint64_t ns = kernel_us * 1000, count = 0;
	void *params[] = {&ns};
	CUevent done[4];
	for (int i = 0; i < 4; i++)
		OK(cuEventCreate(&done[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
	double start = now_ms();
	for (; now_ms() < start + span_ms; count++) { /* four in flight */
		if (count >= 4)
			OK(cuEventSynchronize(done[count % 4]));
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuEventRecord(done[count % 4], NULL));
	}
	OK(cuCtxSynchronize());
	return 100.0 * (double)(count * kernel_us) * 1e-3 / (now_ms() - start);
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	CHECK(argc >= 3);
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	printf("%.2f\n", share(kernel, atof(argv[1]), strtoull(argv[2], NULL, 10)));
	if (argc > 3) {
		usleep((useconds_t)atoi(argv[3]) * 1000);
		printf("%.2f\n", share(kernel, atof(argv[1]), strtoull(argv[2], NULL, 10)));
	}
	return 0;
}
