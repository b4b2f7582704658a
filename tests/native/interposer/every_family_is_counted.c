/* SPDX-License-Identifier: Apache-2.0 */
/* Each way to get device memory takes from what is free, is refused past it, and gives back what it took. */
#include "check.h"

static size_t before;

static void taken(size_t bytes)
{
	CHECK(before - free_bytes() == bytes);
}

static void plain(void)
{
	CUdeviceptr a;
	OK(cuMemAlloc(&a, 1000));
	taken(1024);
	OK(cuMemFree(a));
	OK(cuMemAlloc(&a, 3 * MIB)); /* more than 1 MiB takes whole 2 MiB blocks */
	taken(4 * MIB);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, before + 2 * MIB));
}

static void pitched(void)
{
	CUdeviceptr a;
	size_t pitch;
	OK(cuMemAllocPitch(&a, &pitch, 1000, 4096, 4));
	CHECK(pitch >= 1000);
	taken((pitch * 4096 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&a, &pitch, before / 1024, 1025, 4));
}

static void managed(void)
{
	CUdeviceptr a;
	OK(cuMemAllocManaged(&a, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
	taken(8 * MIB);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&a, before + 2 * MIB, CU_MEM_ATTACH_GLOBAL));
}

static void stream_ordered(void)
{
	CUdeviceptr a;
	CUstream stream;
	CUmemoryPool pool;
	CUdevice device;
	OK(cuCtxGetDevice(&device));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAllocAsync(&a, 8 * MIB, stream));
	taken(8 * MIB);
	OK(cuMemFreeAsync(a, stream));
	OK(cuStreamSynchronize(stream));
	taken(0);
	OK(cuDeviceGetDefaultMemPool(&pool, device));
	OK(cuMemAllocFromPoolAsync(&a, 8 * MIB, pool, stream));
	taken(8 * MIB);
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree(a)); /* a plain free of stream-ordered memory is allowed */
	taken(0);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&a, before + 2 * MIB, stream));
	OK(cuStreamDestroy(stream));
}

static void virtual_memory(void)
{
	CUdevice device;
	OK(cuCtxGetDevice(&device));
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemGenericAllocationHandle first, second, again;
	CUdeviceptr range;
	size_t step;
	OK(cuMemGetAllocationGranularity(&step, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	size_t bytes = 4 * step;
	OK(cuMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
	taken(0); /* addresses are not memory */
	OK(cuMemCreate(&first, bytes, &prop, 0));
	OK(cuMemCreate(&second, bytes, &prop, 0));
	taken(2 * bytes);
	OK(cuMemMap(range, bytes, 0, first, 0));
	OK(cuMemMap(range + bytes, bytes, 0, second, 0));
	taken(2 * bytes);
	OK(cuMemRelease(first)); /* the mapping still holds it */
	taken(2 * bytes);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + bytes)));
	CHECK(again == second);
	OK(cuMemRelease(second));
	OK(cuMemUnmap(range, 2 * bytes)); /* both at once; the second handle has one reference left */
	taken(bytes);
	OK(cuMemRelease(again));
	taken(0);
	OK(cuMemAddressFree(range, 2 * bytes));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&first, before / step * step + step, &prop, 0));
}

int main(void)
{
	static void (*const families[])(void) = {plain, pitched, managed, stream_ordered, virtual_memory};
	start();
	before = free_bytes();
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		families[i]();
		taken(0);
	}
	return 0;
}
