/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the conformance programs: one behaviour each, on the simulation and on hardware alike. A program prints
 * what went wrong and exits 1, or exits 0. It runs with the interposer loaded under a limit of $LIMIT_MIB for
 * the step.
 */
#ifndef CHECK_H
#define CHECK_H
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);              \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

/* Checks that a CUDA call returns `wanted`. */
#define GIVES(wanted, call)                                                                                  \
	do {                                                                                                 \
		CUresult got_ = (call);                                                                      \
		if (got_ != (wanted)) {                                                                      \
			fprintf(stderr, "%s:%d: %s gave %d, not %s\n", __FILE__, __LINE__, #call, (int)got_, \
				#wanted);                                                                    \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

#define OK(call) GIVES(CUDA_SUCCESS, call)

static inline double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static inline size_t limit_bytes(void)
{
	const char *text = getenv("LIMIT_MIB");
	CHECK(text != NULL);
	return (size_t)strtoull(text, NULL, 10) * MIB;
}

static inline size_t free_bytes(void)
{
	size_t left, total;
	OK(cuMemGetInfo(&left, &total));
	return left;
}

/* A context on the first device, current in this thread. */
static inline CUdevice start(void)
{
	CUdevice device;
	CUcontext context;
	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	return device;
}

/* Allocates pieces of `bytes` until the device says that it is full; how many it gave. */
static inline size_t fill(size_t bytes)
{
	size_t count = 0;
	CUdeviceptr address;
	CUresult result;
	while ((result = cuMemAlloc(&address, bytes)) == CUDA_SUCCESS)
		count++;
	CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
	return count;
}
#endif
