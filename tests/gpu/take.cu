// SPDX-License-Identifier: Apache-2.0
/*
 * take WAY MOST_MIB   takes device memory in one way, 64 MiB at a time, until it is refused or has MOST_MIB;
 * prints MiB taken
 *
 * With TAKE_HOLD_S in the environment it stays so many seconds after printing. WAY: plain, pitch, async (the
 * default pool), vmm (cuMemCreate), array, graph (a memory node).
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <unistd.h>

static const size_t STEP = 64u << 20;

static bool plain()
{
	CUdeviceptr p;
	return cuMemAlloc(&p, STEP) == CUDA_SUCCESS;
}

static bool pitch()
{
	CUdeviceptr p;
	size_t wide;
	return cuMemAllocPitch(&p, &wide, 1u << 16, STEP >> 16, 16) == CUDA_SUCCESS;
}

static bool async()
{
	CUdeviceptr p;
	return cuMemAllocAsync(&p, STEP, NULL) == CUDA_SUCCESS && cuStreamSynchronize(NULL) == CUDA_SUCCESS;
}

static bool vmm()
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp p = {};
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return cuMemCreate(&handle, STEP, &p, 0) == CUDA_SUCCESS;
}

static bool array()
{
	CUarray made;
	CUDA_ARRAY_DESCRIPTOR d = {};
	d.Width = 4096;
	d.Height = STEP / 4096 / 16;
	d.Format = CU_AD_FORMAT_UNSIGNED_INT32;
	d.NumChannels = 4;
	return cuArrayCreate(&made, &d) == CUDA_SUCCESS;
}

static bool graph()
{
	CUgraph g;
	CUgraphNode node;
	CUgraphExec ready;
	CUDA_MEM_ALLOC_NODE_PARAMS p = {};
	p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.bytesize = STEP;
	return cuGraphCreate(&g, 0) == CUDA_SUCCESS &&
	       cuGraphAddMemAllocNode(&node, g, NULL, 0, &p) == CUDA_SUCCESS &&
	       cuGraphInstantiate(&ready, g, 0) == CUDA_SUCCESS &&
	       cuGraphLaunch(ready, NULL) == CUDA_SUCCESS && cuStreamSynchronize(NULL) == CUDA_SUCCESS;
}

static const struct {
	const char *name;
	bool (*take)();
} WAYS[] = {{"plain", plain}, {"pitch", pitch}, {"async", async},
	    {"vmm", vmm},     {"array", array}, {"graph", graph}};

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	if (argc != 3 || cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
	    cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
	    cuCtxSetCurrent(context) != CUDA_SUCCESS)
		return 1;
	for (const auto &way : WAYS) {
		if (strcmp(way.name, argv[1]))
			continue;
		size_t taken = 0;
		while (taken < (size_t)atol(argv[2]) << 20 && way.take())
			taken += STEP;
		printf("%zu\n", taken >> 20);
		fflush(stdout);
		sleep(getenv("TAKE_HOLD_S") ? (unsigned)atoi(getenv("TAKE_HOLD_S")) : 0);
		return 0;
	}
	return 1;
}
