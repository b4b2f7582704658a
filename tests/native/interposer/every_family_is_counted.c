/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each way to get device memory takes what it asks for from what is free (the driver may round up), is
 * refused past it, and gives back what it took.
 */
#include "check.h"

#define ASKED (64 * MIB)

static size_t before;
static CUdevice device;

static void taken(size_t bytes)
{
	size_t now = free_bytes();
	CHECK(now <= before && before - now >= bytes && before - now <= bytes + 64 * MIB);
}

static void returned(void)
{
	CHECK(free_bytes() == before);
}

static void plain(void)
{
	CUdeviceptr a;
	OK(cuMemAlloc(&a, ASKED));
	taken(ASKED);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, before + 2 * MIB));
}

static void small(void)
{
	static CUdeviceptr a[1000];
	for (int i = 0; i < 1000; i++)
		OK(cuMemAlloc(&a[i], 64 << 10));
	taken(1000 * (64 << 10));
	for (int i = 0; i < 1000; i++)
		OK(cuMemFree(a[i]));
}

static void pitched(void)
{
	CUdeviceptr a;
	size_t pitch;
	OK(cuMemAllocPitch(&a, &pitch, 16000, 4096, 4));
	CHECK(pitch >= 16000);
	taken(pitch * 4096);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&a, &pitch, before / 1024, 1025, 4));
}

static void managed(void)
{
	CUdeviceptr a;
	OK(cuMemAllocManaged(&a, ASKED, CU_MEM_ATTACH_GLOBAL));
	taken(ASKED);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&a, before + 2 * MIB, CU_MEM_ATTACH_GLOBAL));
}

static void stream_ordered(void)
{
	CUdeviceptr a;
	CUstream stream;
	CUmemoryPool pool;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAllocAsync(&a, ASKED, stream));
	taken(ASKED);
	OK(cuMemFreeAsync(a, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuDeviceGetDefaultMemPool(&pool, device));
	OK(cuMemPoolTrimTo(pool, 0));
	returned();
	OK(cuMemAllocFromPoolAsync(&a, ASKED, pool, stream));
	taken(ASKED);
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree(a)); /* a plain free of stream-ordered memory is allowed */
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&a, before + 2 * MIB, stream));
	OK(cuStreamDestroy(stream));
	OK(cuMemPoolTrimTo(pool, 0));
}

static void virtual_memory(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemGenericAllocationHandle first, second, again;
	CUdeviceptr range;
	OK(cuMemAddressReserve(&range, 2 * ASKED, 0, 0, 0));
	returned(); /* addresses are not memory */
	OK(cuMemCreate(&first, ASKED, &prop, 0));
	OK(cuMemCreate(&second, ASKED, &prop, 0));
	taken(2 * ASKED);
	OK(cuMemMap(range, ASKED, 0, first, 0));
	OK(cuMemMap(range + ASKED, ASKED, 0, second, 0));
	OK(cuMemRelease(first)); /* the mapping still holds it */
	taken(2 * ASKED);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + ASKED)));
	OK(cuMemRelease(second));
	OK(cuMemUnmap(range, 2 * ASKED)); /* both at once; the second has one reference left */
	taken(ASKED);
	OK(cuMemRelease(again));
	returned();
	OK(cuMemAddressFree(range, 2 * ASKED));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY,
	      cuMemCreate(&first, before / (2 * MIB) * (2 * MIB) + 2 * MIB, &prop, 0));
}

static void arrays(void)
{
	CUarray a;
	CUmipmappedArray m;
	CUDA_ARRAY_DESCRIPTOR flat = {
		.Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR deep = {
		.Width = 1024, .Height = 1024, .Depth = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	OK(cuArrayCreate(&a, &flat));
	taken(ASKED);
	OK(cuArrayDestroy(a));
	OK(cuArray3DCreate(&a, &deep));
	taken(ASKED);
	OK(cuArrayDestroy(a));
	flat.Height = flat.Width = 4096;
	CUDA_ARRAY3D_DESCRIPTOR levels = {
		.Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	OK(cuMipmappedArrayCreate(&m, &levels, 3));
	taken(ASKED);
	OK(cuMipmappedArrayDestroy(m));
}

static void graph_nodes(void)
{
	CUgraph graph;
	CUgraphExec executable;
	CUgraphNode get, put;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
		.bytesize = ASKED};
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&get, graph, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&put, graph, &get, 1, params.dptr));
	OK(cuGraphInstantiate(&executable, graph, 0));
	OK(cuGraphLaunch(executable, NULL));
	OK(cuStreamSynchronize(NULL));
	taken(ASKED); /* the graph keeps it for its next launch */
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(cuDeviceGraphMemTrim(device));
}

int main(void)
{
	static void (*const families[])(void) = {plain,          small,          pitched, managed,
						 stream_ordered, virtual_memory, arrays,  graph_nodes};
	device = start();
	before = free_bytes();
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		fprintf(stderr, "family %zu\n", i);
		families[i]();
		returned();
	}
	return 0;
}
