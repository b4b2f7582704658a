/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that make and destroy contexts, and retain, release and reset the primary one, while the keeper asks them. */
#include <pthread.h>
#include <time.h>

#include "../interposer/check.h"

enum { THREADS = 4 };

static time_t end;

static void spin(void)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 300000;
	void *params[] = {&ns};
	if (cuModuleLoadData(&module, "image") != CUDA_SUCCESS ||
	    cuModuleGetFunction(&kernel, module, "sim_spin_ns") != CUDA_SUCCESS)
		return; /* another thread has reset it */
	cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
}

static void *own_contexts(void *unused)
{
	CUcontext context;
	while (time(NULL) < end) {
		OK(cuCtxCreate(&context, NULL, 0, 0));
		spin();
		OK(cuCtxDestroy(context));
	}
	return unused;
}

static void *primary(void *resets)
{
	CUcontext context;
	while (time(NULL) < end) {
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		cuCtxSetCurrent(context);
		spin();
		if (resets)
			cuDevicePrimaryCtxReset(0);
		else
			cuDevicePrimaryCtxRelease(0);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	OK(cuInit(0));
	end = time(NULL) + 2;
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, i < 2 ? own_contexts : primary,
				     i == 3 ? &end : NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}
