/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void a_pool_keeps_until_it_is_trimmed(void)
{
	CUmemoryPool pool, custom;
	CUdeviceptr p, q;
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	cuuint64_t amount, threshold = 64 * MIB;
	size_t before = free_memory();
	OK(cuMemAllocAsync(&p, 1000, NULL));
	CHECK(before - free_memory() == 32 * MIB); /* a pool's block */
	OK(cuMemAllocAsync(&q, 10 * MIB, NULL));
	CHECK(before - free_memory() == 32 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemFreeAsync(q, NULL));
	CHECK(before - free_memory() == 32 * MIB);
	OK(cuStreamSynchronize(NULL));
	CHECK(free_memory() == before); /* the release threshold is 0 */

	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&p, 40 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(before - free_memory() == 40 * MIB);
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &amount));
	CHECK(amount == 40 * MIB);
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &amount));
	CHECK(amount == 0);
	OK(cuMemAllocAsync(&q, 40 * MIB, NULL));
	CHECK(q == p && before - free_memory() == 40 * MIB);
	OK(cuMemFree(q)); /* the plain free takes a pool's memory too */
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(free_memory() == before);

	OK(cuMemPoolCreate(&custom, &properties));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
	OK(cuDeviceSetMemPool(0, custom));
	OK(cuMemAllocAsync(&p, 100 * MIB, NULL));
	OK(cuMemPoolDestroy(custom)); /* what is allocated from it lives on */
	CHECK(before - free_memory() == 100 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(free_memory() == before);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, before + 1, NULL));
}

/* As libcuda: something is allocated where a copy begins, whatever follows in the pool's block. */
static void copies_ask_where_they_begin(void)
{
	CUdeviceptr p, q;
	static char bytes[2 * MIB];
	OK(cuMemAllocAsync(&p, MIB, NULL));
	OK(cuMemAllocAsync(&q, MIB, NULL));
	OK(cuMemcpyDtoH(bytes, p, sizeof bytes));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuMemcpyDtoH(bytes, p, sizeof bytes));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemAllocAsync(&p, MIB / 2, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(bytes, p + MIB / 2, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p + MIB / 2, bytes, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(bytes, p, 32 * MIB + 1));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
}

static void arrays_take_memory(void)
{
	CUarray array, level;
	CUmipmappedArray mipmap;
	size_t before = free_memory();
	CUDA_ARRAY_DESCRIPTOR flat = {
		.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {
		.Width = 512, .Height = 512, .Depth = 16, .Format = CU_AD_FORMAT_HALF, .NumChannels = 2};
	OK(cuArrayCreate(&array, &flat));
	CHECK(before - free_memory() == 16 * MIB);
	OK(cuArrayDestroy(array));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(NULL));
	OK(cuArray3DCreate(&array, &deep));
	CHECK(before - free_memory() == 16 * MIB);
	OK(cuArrayDestroy(array));
	flat.NumChannels = 3;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&array, &flat));
	deep.Depth = 0;
	deep.Height = 4096;
	OK(cuMipmappedArrayCreate(&mipmap, &deep, 3));
	CHECK(before - free_memory() == (8 + 2 + 2) * MIB); /* 8 + 2 + 0.5 */
	OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
	OK(cuArray3DGetDescriptor(&deep, level));
	CHECK(deep.Width == 256 && deep.Height == 2048);
	OK(cuMipmappedArrayDestroy(mipmap));
	CHECK(free_memory() == before);
}

static void graphs_allocate_at_launch(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode allocation, kernel, release;
	uint64_t ns = 20 * MS;
	void *arguments[] = {&ns};
	CUDA_KERNEL_NODE_PARAMS launch = {.func = spin_function(),
					  .gridDimX = 1,
					  .gridDimY = 1,
					  .gridDimZ = 1,
					  .blockDimX = 1,
					  .blockDimY = 1,
					  .blockDimZ = 1,
					  .kernelParams = arguments};
	CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
					     .bytesize = 100 * MIB};
	size_t before = free_memory();
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &memory));
	OK(cuGraphAddKernelNode(&kernel, graph, &allocation, 1, &launch));
	OK(cuGraphAddMemFreeNode(&release, graph, &kernel, 1, memory.dptr));
	ns = 0; /* the node has its own copy */
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	CHECK(free_memory() == before);
	uint64_t start = now_ns();
	OK(cuGraphLaunch(exec, NULL));
	CHECK(before - free_memory() == 100 * MIB);
	OK(cuGraphLaunch(exec, NULL));
	CHECK(before - free_memory() == 100 * MIB);
	OK(cuStreamSynchronize(NULL));
	CHECK(now_ns() - start >= 40 * MS);
	CHECK(before - free_memory() == 100 * MIB);
	OK(cuDeviceGraphMemTrim(0));
	CHECK(free_memory() == before);
	OK(cuGraphExecDestroy(exec));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(NULL, NULL));

	/* Without a free node the memory is the application's to free. */
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &memory));
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphLaunch(exec, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	CHECK(before - free_memory() == 100 * MIB);
	OK(cuMemFree(memory.dptr));
	CHECK(free_memory() == before);
}

static void managed_memory_counts_in_full(void)
{
	CUdeviceptr p;
	unsigned managed;
	size_t before = free_memory();
	OK(cuMemAllocManaged(&p, 10, CU_MEM_ATTACH_GLOBAL));
	CHECK(before - free_memory() == 2 * MIB);
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	CHECK(managed == 1);
	*(volatile char *)(uintptr_t)p = 1; /* the host may touch it */
	OK(cuMemFree(p));
	CHECK(free_memory() == before);
}

int main(void)
{
	make_machine("h200");
	open_device();
	a_pool_keeps_until_it_is_trimmed();
	copies_ask_where_they_begin();
	arrays_take_memory();
	graphs_allocate_at_launch();
	managed_memory_counts_in_full();
	return 0;
}
