/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight threads change between all devices at random: they allocate, free each other's and their own, make and destroy
 * contexts, launch. In the end each slice holds what it held at first.
 */
#include <pthread.h>

#include "several.h"

#define THREADS 8
#define ROUNDS 120

static void work(unsigned int *seed)
{
	CUdeviceptr a[4];
	CUcontext own;
	int device = rand_r(seed) % device_count, count = 0;
	OK(cuCtxSetCurrent(contexts[device]));
	for (int i = 0; i < 4; i++)
		count += cuMemAlloc(&a[count], (size_t)(1 + rand_r(seed) % 64) * MIB) == CUDA_SUCCESS;
	/* It may not fit beside what the other threads hold. */
	if (rand_r(seed) % 4 == 0 &&
	    cuCtxCreate(&own, NULL, 0, (device + 1) % device_count) == CUDA_SUCCESS) {
		spin(0.1, 10);
		OK(cuCtxDestroy(own));
	}
	OK(cuCtxSetCurrent(contexts[rand_r(seed) % device_count]));
	spin(0.1, 10);
	for (int i = 0; i < count; i++)
		OK(cuMemFree(a[i]));
}

static void *run(void *number)
{
	unsigned int seed = (unsigned int)(uintptr_t)number;
	for (int i = 0; i < ROUNDS; i++)
		work(&seed);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	size_t at_first[MOST_DEVICES];
	open_all();
	for (int i = 0; i < device_count; i++)
		at_first[i] = free_on(i);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < device_count; i++)
		CHECK(free_on(i) == at_first[i]);
	return 0;
}
