/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one GPU does with another's memory is charged nowhere again: copies, peer access, mappings with access for both.
 * What lies on the other GPU is charged there, whose ever context is current. Managed memory may be on either.
 */
#include "several.h"

static size_t left[2];

static void remember(void)
{
	left[0] = free_on(0);
	left[1] = free_on(1);
}

/* Since remember(), so much has gone on each. */
static void gone(size_t first, size_t second)
{
	CHECK(left[0] - free_on(0) == first);
	CHECK(left[1] - free_on(1) == second);
}

static void copies(void)
{
	CUdeviceptr a, b;
	unsigned value = 0;
	remember();
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemAlloc(&a, 64 * MIB));
	OK(cuCtxSetCurrent(contexts[1]));
	OK(cuMemAlloc(&b, 32 * MIB));
	gone(64 * MIB, 32 * MIB);
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemsetD32(a, 4711, 1));
	OK(cuMemcpyPeer(b, contexts[1], a, contexts[0], 32 * MIB));
	OK(cuMemcpyDtoH(&value, b, sizeof value));
	CHECK(value == 4711);
	OK(cuCtxEnablePeerAccess(contexts[1], 0));
	OK(cuCtxSetCurrent(contexts[1]));
	OK(cuCtxEnablePeerAccess(contexts[0], 0));
	OK(cuMemcpyDtoD(a + 4096, b, 4096));
	gone(64 * MIB, 32 * MIB);
	OK(cuCtxDisablePeerAccess(contexts[0]));
	OK(cuMemFree(a)); /* from the other's context */
	gone(0, 32 * MIB);
	OK(cuMemFree(b));
	gone(0, 0);
}

static void mappings(void)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUmemAccessDesc access[] = {
		{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
		{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
	};
	CUdeviceptr address;
	remember();
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemCreate(&handle, 64 * MIB, &p, 0));
	gone(0, 64 * MIB);
	OK(cuMemAddressReserve(&address, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
	OK(cuMemSetAccess(address, 64 * MIB, access, 2));
	gone(0, 64 * MIB);
	OK(cuMemUnmap(address, 64 * MIB));
	OK(cuMemAddressFree(address, 64 * MIB));
	OK(cuMemRelease(handle));
	gone(0, 0);
	/* Full there, room here. */
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, limits[1], &p, 0));
}

static void managed(void)
{
	CUdeviceptr a;
	remember();
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemAllocManaged(&a, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
	gone(64 * MIB, 64 * MIB);
	OK(cuCtxSetCurrent(contexts[1]));
	OK(cuMemFree(a));
	gone(0, 0);
	/* It fits the larger slice, and not the smaller: nothing is charged. */
	size_t most = limits[0] > limits[1] ? limits[1] : limits[0];
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&a, most, CU_MEM_ATTACH_GLOBAL));
	gone(0, 0);
}

int main(void)
{
	open_all();
	CHECK(device_count == 2);
	copies();
	mappings();
	managed();
	return 0;
}
