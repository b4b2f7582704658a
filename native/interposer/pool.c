/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation. A charge covers the bytes in use; it is given back when the free is ordered, as
 * the pool may hand the memory out again from then on. The _ptsz forms are those of the per-thread default
 * stream.
 */
#include "interposer.h"

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	HAMI_ALLOCATE(cuMemAllocAsync, address, bytes, bytes, stream);
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	HAMI_ALLOCATE(cuMemAllocAsync_ptsz, address, bytes, bytes, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
					 CUstream stream)
{
	HAMI_ALLOCATE(cuMemAllocFromPoolAsync, address, bytes, bytes, pool, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
					      CUstream stream)
{
	HAMI_ALLOCATE(cuMemAllocFromPoolAsync_ptsz, address, bytes, bytes, pool, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemFreeAsync)
		return CUDA_ERROR_NOT_SUPPORTED;
	uint64_t bytes = hami_forget(address);
	return hami_freed(real->cuMemFreeAsync(address, stream), address, bytes);
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemFreeAsync_ptsz)
		return CUDA_ERROR_NOT_SUPPORTED;
	uint64_t bytes = hami_forget(address);
	return hami_freed(real->cuMemFreeAsync_ptsz(address, stream), address, bytes);
}
