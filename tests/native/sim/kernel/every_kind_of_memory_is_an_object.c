/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

static const size_t SIZE = 64 * MIB;
static CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static struct {
	int objects;
	size_t used;
} before;

static void begin(void)
{
	before.objects = held.count;
	before.used = used_bytes();
}

/* One more object than at `begin`, which the kernel has charged; mapped whole, or (0) nowhere. */
static const struct held *one_more(size_t size, size_t mapped)
{
	const struct held *h = &held.of[held.count - 1];
	CHECK(held.count == before.objects + 1 && h->params.size == size && h->map.length == mapped);
	CHECK(used_bytes() == before.used + size);
	CHECK(!mapped || (h->map.count == 1 && h->uvm_fd == held.of[0].uvm_fd));
	return h;
}

static void none_is_left(void)
{
	CHECK(held.count == before.objects && used_bytes() == before.used);
}

/* An allocation is three requests, two of them for the mapping; freeing it is two. */
static void plain(void)
{
	CUdeviceptr address;
	size_t pitch;
	begin();
	int requests = held.requests;
	OK(cuMemAlloc(&address, SIZE));
	CHECK(held.requests == requests + 3);
	CHECK(one_more(SIZE, SIZE)->map.base == address);
	requests = held.requests;
	OK(cuMemFree(address));
	CHECK(held.requests == requests + 2);
	none_is_left();
	OK(cuMemAllocPitch(&address, &pitch, 4096, SIZE / 4096, 4));
	one_more(SIZE, SIZE);
	OK(cuMemFree(address));
	none_is_left();
}

static void pieces_share_an_object(void)
{
	CUdeviceptr a, b;
	begin();
	OK(cuMemAlloc(&a, 1000));
	OK(cuMemAlloc(&b, 1000));
	const struct held *h = one_more(2 * MIB, 2 * MIB);
	CHECK(held_at(a) == h && held_at(b) == h);
	OK(cuMemFree(a));
	OK(cuMemFree(b));
	none_is_left();
}

static void pools(void)
{
	CUdeviceptr address;
	begin();
	OK(cuMemAllocAsync(&address, SIZE, NULL));
	one_more(SIZE, SIZE);
	OK(cuMemFreeAsync(address, NULL));
	one_more(SIZE, SIZE);
	OK(cuStreamSynchronize(NULL));
	none_is_left();
}

static void arrays(void)
{
	CUarray array;
	CUDA_ARRAY_DESCRIPTOR d = {
		.Width = 4096, .Height = SIZE / 4096, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
	begin();
	OK(cuArrayCreate(&array, &d));
	one_more(SIZE, SIZE);
	OK(cuArrayDestroy(array));
	none_is_left();
}

static void physical_memory(void)
{
	CUdeviceptr address;
	CUmemGenericAllocationHandle handle;
	begin();
	OK(cuMemAddressReserve(&address, 2 * SIZE, 0, 0, 0));
	none_is_left();
	OK(cuMemCreate(&handle, SIZE, &properties, 0));
	one_more(SIZE, 0);
	OK(cuMemMap(address + SIZE, SIZE, 0, handle, 0));
	CHECK(one_more(SIZE, SIZE)->map.base == address + SIZE);
	OK(cuMemUnmap(address + SIZE, SIZE));
	one_more(SIZE, 0);
	OK(cuMemRelease(handle));
	none_is_left();
	OK(cuMemAddressFree(address, 2 * SIZE));
}

static void graphs(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode allocation;
	CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
					     .bytesize = SIZE};
	begin();
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &memory));
	OK(cuGraphInstantiate(&exec, graph, 0));
	none_is_left();
	OK(cuGraphLaunch(exec, NULL));
	CHECK(one_more(SIZE, SIZE)->map.base == memory.dptr);
	OK(cuMemFree(memory.dptr));
	one_more(SIZE, SIZE);
	OK(cuDeviceGraphMemTrim(0));
	none_is_left();
	OK(cuGraphLaunch(exec, NULL));
	CHECK(one_more(SIZE, SIZE)->map.base == memory.dptr);
	OK(cuMemFree(memory.dptr));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	none_is_left();
}

static void managed_memory_is_none(void)
{
	CUdeviceptr address;
	begin();
	OK(cuMemAllocManaged(&address, SIZE, CU_MEM_ATTACH_GLOBAL));
	CHECK(held.count == before.objects && used_bytes() == before.used + SIZE);
	OK(cuMemFree(address));
	none_is_left();
}

int main(void)
{
	make_machine("h200");
	watch_memory = hold;
	open_device();
	plain();
	pieces_share_an_object();
	pools();
	arrays();
	physical_memory();
	graphs();
	managed_memory_is_none();
	return 0;
}
