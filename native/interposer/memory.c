/* SPDX-License-Identifier: Apache-2.0 */
/* Plain, pitched and managed allocations, and what the application is told of the memory there is. */
#include "interposer.h"

static size_t smaller(size_t a, uint64_t b)
{
	return a < b ? a : (size_t)b;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	CUresult result = real->cuMemGetInfo_v2(free_bytes, total_bytes);
	if (result != CUDA_SUCCESS)
		return result;
	struct hami_view view;
	hami_region_view(hami_region(), &view);
	*total_bytes = smaller(*total_bytes, view.limit);
	*free_bytes = smaller(*free_bytes, view.free);
	return result;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	HAMI_ALLOCATE(cuMemAlloc_v2, address, bytes, bytes);
}

/* The driver picks the pitch: charge what the widest row can take, then correct it to what it took. */
CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
				    unsigned int element)
{
	const size_t pitch_step =
		512; /* CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT and more (H200: 1000 -> 1024) */
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	size_t row, total;
	if (__builtin_add_overflow(width, pitch_step - 1, &row) ||
	    __builtin_mul_overflow(row / pitch_step * pitch_step, height, &total))
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t charge = hami_footprint(total);
	CUresult result = hami_take(charge);
	if (result != CUDA_SUCCESS)
		return result;
	result = real->cuMemAllocPitch_v2(address, pitch, width, height, element);
	if (result == CUDA_SUCCESS) {
		uint64_t taken = hami_footprint(*pitch * height);
		if (taken > charge)
			hami_region_force(hami_region(), HAMI_KIND_DATA, taken - charge);
		else
			hami_region_release(hami_region(), HAMI_KIND_DATA, charge - taken);
		charge = taken;
	}
	return hami_settle(result, result == CUDA_SUCCESS ? *address : 0, charge);
}

/* Managed memory can move to the host, but it may all be on the device, so all of it counts. */
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	HAMI_ALLOCATE(cuMemAllocManaged, address, bytes, bytes, flags);
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	uint64_t bytes = hami_forget(address);
	return hami_freed(real->cuMemFree_v2(address), address, bytes);
}

/*
 * The names of before CUDA 3.2 had 32-bit sizes and addresses. Drivers still export them; programs that old
 * are not supported under a limit, and a call that went past it would not be counted.
 */
CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	(void)free_bytes, (void)total_bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes)
{
	(void)address, (void)bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width,
				 unsigned int height, unsigned int element)
{
	(void)address, (void)pitch, (void)width, (void)height, (void)element;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 address)
{
	(void)address;
	return CUDA_ERROR_NOT_SUPPORTED;
}
