/* SPDX-License-Identifier: Apache-2.0 */
/* For programs with several slices: a context on each device, and what its slice allows. */
#ifndef SEVERAL_H
#define SEVERAL_H
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "../interposer/check.h"

#define MOST_DEVICES 16

static CUcontext contexts[MOST_DEVICES];
static size_t
	limits[MOST_DEVICES]; /* of $LIMITS_MIB, "4096,2048", by CUDA's order of devices; 0: not the job's */
static int device_count;

static inline void read_limits(void)
{
	const char *text = getenv("LIMITS_MIB");
	CHECK(text != NULL);
	for (device_count = 0; *text && device_count < MOST_DEVICES; device_count++) {
		char *end;
		limits[device_count] = (size_t)strtoull(text, &end, 10) * MIB;
		text = *end ? end + 1 : end;
	}
}

/* Makes the primary contexts of all devices of the job; the last one is current. */
static inline void open_all(void)
{
	int count;
	read_limits();
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == device_count);
	for (int i = 0; i < device_count; i++) {
		if (!limits[i]) {
			GIVES(CUDA_ERROR_NOT_PERMITTED, cuDevicePrimaryCtxRetain(&contexts[i], i));
			GIVES(CUDA_ERROR_NOT_PERMITTED, cuCtxCreate(&contexts[i], NULL, 0, i));
			continue;
		}
		OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
		OK(cuCtxSetCurrent(contexts[i]));
	}
}

static inline size_t free_on(int device)
{
	CUcontext before;
	OK(cuCtxGetCurrent(&before));
	OK(cuCtxSetCurrent(contexts[device]));
	size_t bytes = free_bytes();
	OK(cuCtxSetCurrent(before));
	return bytes;
}

/* Runs kernels of so many us on the current device for `span_ms`; returns the percentage of that time that they ran. */
static inline double spin(double span_ms, uint64_t kernel_us)
{
	CUmodule module;
	CUfunction kernel;
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	uint64_t ns = kernel_us * 1000, count = 0;
	void *params[] = {&ns};
	CUevent done[4];
	for (int i = 0; i < 4; i++)
		OK(cuEventCreate(&done[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
	double begun = now_ms();
	for (; now_ms() < begun + span_ms; count++) { /* four in flight */
		if (count >= 4)
			OK(cuEventSynchronize(done[count % 4]));
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuEventRecord(done[count % 4], NULL));
	}
	OK(cuCtxSynchronize());
	return 100.0 * (double)(count * kernel_us) * 1e-3 / (now_ms() - begun);
}
#endif
