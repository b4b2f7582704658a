/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads allocate and free at the edge for a while: argv[1] milliseconds. Run several of these at once, and
 * kill some: the sum over all of them, as the driver counts it, never passes the limit.
 */
#include <pthread.h>

#include "check.h"

static CUcontext context;
static double end_ms;

static void *work(void *seed_at)
{
	unsigned int seed = *(unsigned int *)seed_at;
	CUdeviceptr held[8] = {0};
	OK(cuCtxSetCurrent(context));
	while (now_ms() < end_ms) {
		unsigned int i = (unsigned int)rand_r(&seed) % 8;
		if (held[i])
			OK(cuMemFree(held[i]));
		held[i] = 0;
		size_t bytes = (2 + (size_t)rand_r(&seed) % 60) * MIB;
		CUresult result = cuMemAlloc(&held[i], bytes);
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
		if (result != CUDA_SUCCESS)
			held[i] = 0;
	}
	for (int i = 0; i < 8; i++)
		if (held[i])
			OK(cuMemFree(held[i]));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	unsigned int seeds[4];
	end_ms = now_ms() + (argc > 1 ? atof(argv[1]) : 1000);
	CUdevice device;
	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	CUresult result = cuDevicePrimaryCtxRetain(&context, device);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return 0; /* no room for one more context: as it should be */
	OK(result);
	for (unsigned int i = 0; i < 4; i++) {
		seeds[i] = (unsigned int)getpid() * 4 + i;
		CHECK(pthread_create(&threads[i], NULL, work, &seeds[i]) == 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
