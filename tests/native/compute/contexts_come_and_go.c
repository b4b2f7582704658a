/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the share of the GPU's time, as spin_for does, in a first context; then, after that one was
 * destroyed and nothing ran for a moment, in two at once; then in the primary one after a reset.
 */
#include "../interposer/check.h"

/* Two seconds of 1 ms kernels in the current context: after a rest it may be paused for half a second, once. */
static void work(void)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 1000000, count = 0;
	void *params[] = {&ns};
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	double start = now_ms();
	for (; now_ms() < start + 2000; count++) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		if (count % 4 == 3)
			OK(cuCtxSynchronize());
	}
	OK(cuCtxSynchronize());
	printf("%.2f\n", 100.0 * (double)count / (now_ms() - start));
}

int main(void)
{
	CUdevice device;
	CUcontext first, second;
	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	OK(cuCtxCreate(&first, NULL, 0, device));
	work();
	OK(cuCtxDestroy(first));
	usleep(300000);
	OK(cuCtxCreate(&first, NULL, 0, device));
	OK(cuCtxCreate(&second, NULL, 0, device));
	work();
	OK(cuCtxDestroy(second));
	OK(cuCtxDestroy(first));
	OK(cuDevicePrimaryCtxRetain(&first, device));
	OK(cuDevicePrimaryCtxReset(device));
	OK(cuDevicePrimaryCtxRetain(&first, device));
	OK(cuCtxSetCurrent(first));
	work();
	return 0;
}
