/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc and its plain relatives. */
#include "memory.h"

#include <limits.h>

enum { PITCH_ALIGNMENT = 512 };

static CUresult allocate(struct CUctx_st *c, CUdeviceptr *out, size_t size, bool managed)
{
	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	c->heap.managed = managed;
	CUresult result = managed ? heap_alloc_whole(&c->heap, size, out) : heap_alloc(&c->heap, size, out);
	c->heap.managed = false;
	sim_process_unlock();
	return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	SIM_ENTER_CONTEXT(cuMemAlloc_v2, c);
	return allocate(c, out, size, false);
}

/* Charged in full when it is allocated: what a device's fault handler would move in over time. */
CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuMemAllocManaged, c);
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(c, out, size, true);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
			    unsigned int element)
{
	SIM_ENTER_CONTEXT(cuMemAllocPitch_v2, c);
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	size_t row, size;
	if (width > SIZE_MAX - PITCH_ALIGNMENT)
		return CUDA_ERROR_OUT_OF_MEMORY;
	row = round_up(width, PITCH_ALIGNMENT);
	if (__builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_CHECK(allocate(c, out, size, false));
	*pitch = row;
	return CUDA_SUCCESS;
}

/* Waits for the context's work, as the driver does: the memory may be in use. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
	SIM_ENTER_CONTEXT(cuMemFree_v2, c);
	if (!address)
		return CUDA_SUCCESS;
	sim_context_drain(c);
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool of_pool = r && r->heap && r->heap->keep;
	CUresult result = heap_free(address);
	sim_process_unlock();
	if (of_pool) {
		sim_pools_mark();
		sim_pools_settle();
	}
	return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	SIM_ENTER_CONTEXT(cuMemGetInfo_v2, c);
	if (!free_bytes && !total_bytes) /* one of them may be NULL on an H200 (driver 580) */
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock(&sim.view);
	sim_sweep(&sim.view);
	uint64_t used = sim_mig_used(&sim.view, c->device);
	sim_unlock(&sim.view);
	const uint64_t total = sim_cuda_total(&sim.view.machine.gpu[c->device]);
	if (total_bytes)
		*total_bytes = total;
	if (free_bytes)
		*free_bytes = total - used;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	SIM_ENTER_CONTEXT(cuMemGetAddressRange_v2, c);
	uintptr_t start;
	size_t length;
	struct region *region;
	(void)c;
	sim_process_lock();
	CUresult result = heap_range(address, &start, &length, &region);
	sim_process_unlock();
	SIM_CHECK(result);
	if (base)
		*base = start;
	if (size)
		*size = length;
	return CUDA_SUCCESS;
}
