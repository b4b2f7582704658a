/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rectangles, between contexts, and the hints for managed memory. */
#include "memory.h"

static CUresult side_address(CUmemorytype type, const void *host, CUdeviceptr device, CUdeviceptr *out)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		*out = (CUdeviceptr)(uintptr_t)host;
		return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		*out = device;
		return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_NOT_SUPPORTED; /* arrays are opaque here */
	}
}

static CUresult copy_rows(const CUDA_MEMCPY2D *p, CUstream stream)
{
	CUdeviceptr from, to;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(side_address(p->srcMemoryType, p->srcHost, p->srcDevice, &from));
	SIM_CHECK(side_address(p->dstMemoryType, p->dstHost, p->dstDevice, &to));
	size_t from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
	size_t to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
	if (from_pitch < p->WidthInBytes || to_pitch < p->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	from += p->srcY * from_pitch + p->srcXInBytes;
	to += p->dstY * to_pitch + p->dstXInBytes;
	return sim_copy_rows(stream, to, to_pitch, from, from_pitch, p->WidthInBytes, p->Height);
}

static CUresult copy_rows_now(const CUDA_MEMCPY2D *p, CUstream stream)
{
	struct CUstream_st *s;
	SIM_CHECK(sim_stream_live(stream, &s));
	SIM_CHECK(copy_rows(p, stream));
	sim_stream_drain(s);
	return CUDA_SUCCESS;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	SIM_ENTER(cuMemcpy2D_v2);
	return copy_rows_now(p, CU_STREAM_LEGACY);
}

CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p)
{
	SIM_ENTER(cuMemcpy2D_v2);
	return copy_rows_now(p, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	SIM_ENTER(cuMemcpy2DUnaligned_v2);
	return copy_rows_now(p, CU_STREAM_LEGACY);
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p)
{
	SIM_ENTER(cuMemcpy2DUnaligned_v2);
	return copy_rows_now(p, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
	SIM_ENTER(cuMemcpy2DAsync_v2);
	return copy_rows(p, stream);
}

static CUresult copy_peer(CUstream stream, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t size, bool wait)
{
	sim_process_lock();
	bool valid = sim_context_valid(to_context) && sim_context_valid(from_context);
	sim_process_unlock();
	return valid ? sim_copy(stream, to, from, size, wait) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		      size_t size)
{
	SIM_ENTER(cuMemcpyPeer);
	return copy_peer(CU_STREAM_LEGACY, to, to_context, from, from_context, size, true);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
			   size_t size)
{
	SIM_ENTER(cuMemcpyPeer);
	return copy_peer(CU_STREAM_PER_THREAD, to, to_context, from, from_context, size, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
			   size_t size, CUstream stream)
{
	SIM_ENTER(cuMemcpyPeerAsync);
	return copy_peer(stream, to, to_context, from, from_context, size, false);
}

/* Managed memory is always where it is: moving and advising it changes nothing. */
static CUresult check_managed(CUdeviceptr address, size_t size)
{
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool ok = size && r && r->managed && sim_device_range(address, size, false);
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuMemPrefetchAsync);
	SIM_CHECK(sim_stream_live(stream, &s));
	if (device != CU_DEVICE_CPU)
		SIM_CHECK(sim_check_device(device));
	return check_managed(address, size);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
			       CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuMemPrefetchAsync_v2);
	SIM_CHECK(sim_stream_live(stream, &s));
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		SIM_CHECK(sim_check_device(location.id));
	return check_managed(address, size);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device)
{
	SIM_ENTER(cuMemAdvise);
	(void)device;
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	return check_managed(address, size);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location)
{
	return cuMemAdvise(address, size, advice, location.id);
}
