/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of call from several threads at once; at the end nothing is held and all work was done. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 150 };

static CUcontext context;
static CUfunction function;
static _Atomic int callbacks;

static void count_callback(void *unused)
{
	(void)unused;
	atomic_fetch_add(&callbacks, 1);
}

static void one_round(CUstream stream, CUevent event, unsigned seed)
{
	CUdeviceptr small, large, pooled;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	unsigned value = 0;
	OK(cuMemAlloc(&small, 100 + seed % 3000));
	OK(cuMemAlloc(&large, (1 + seed % 7) * 2 * MIB));
	OK(cuMemAllocAsync(&pooled, 5000, stream));
	OK(cuMemCreate(&handle, 2 * MIB, &properties, 0));
	spin(function, stream, 1000 + seed % 20000);
	OK(cuEventRecord(event, stream));
	OK(cuLaunchHostFunc(stream, count_callback, NULL));
	OK(cuMemsetD32Async(small, seed, 1, stream));
	OK(cuMemFreeAsync(pooled, stream));
	if (seed % 3 == 0)
		OK(cuStreamSynchronize(stream));
	else if (seed % 3 == 1)
		OK(cuEventSynchronize(event));
	OK(cuMemcpyDtoHAsync(&value, small, sizeof value, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(value == seed);
	OK(cuMemRelease(handle));
	OK(cuMemFree(large));
	OK(cuMemFree(small));
}

static void *run(void *number)
{
	CUstream stream;
	CUevent event;
	unsigned seed = (unsigned)(uintptr_t)number;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	for (int i = 0; i < ROUNDS; i++) {
		seed = seed * 1103515245u + 12345u;
		one_round(stream, event, seed >> 8);
	}
	OK(cuEventDestroy(event));
	OK(cuStreamDestroy(stream));
	return NULL;
}

int main(void)
{
	pthread_t thread[THREADS];
	make_machine("h200");
	context = open_device();
	function = spin_function();
	size_t before = free_memory();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, run, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	OK(cuCtxSynchronize());
	CHECK(free_memory() == before);
	CHECK(atomic_load(&callbacks) == THREADS * ROUNDS);
	return 0;
}
