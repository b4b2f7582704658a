/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initialisation, device size, and contexts: only the granted GPU takes one, and its own memory counts. What
 * a context held goes with it, so its allocations are dropped from the table when the driver has destroyed
 * it.
 */
#include "interposer.h"
#include "table.h"

CUresult CUDAAPI cuInit(unsigned int flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	CUresult result = real->cuInit(flags);
	if (result == CUDA_SUCCESS)
		hami_find_device(real);
	return result;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	CUresult result = real->cuDeviceTotalMem_v2(bytes, device);
	if (result == CUDA_SUCCESS && hami_device_granted(device)) {
		struct hami_view view;
		hami_region_view(hami_region(), &view);
		if (view.limit < *bytes)
			*bytes = (size_t)view.limit;
	}
	return result;
}

/* The body of a hook that makes a context on `device`. */
#define MAKE_CONTEXT(name, device, ...)                                                                      \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	CUresult result = admit(real, device);                                                               \
	if (result != CUDA_SUCCESS)                                                                          \
		return result;                                                                               \
	result = real->name(__VA_ARGS__);                                                                    \
	hami_context_settle(result);                                                                         \
	return result

static CUresult admit(const struct real_cuda *real, CUdevice device)
{
	CUuuid uuid;
	if (!hami_device_granted(device)) {
		CUresult result = real->cuDeviceGetUuid_v2(&uuid, device);
		return result == CUDA_SUCCESS ? HAMI_REFUSED
					      : result; /* no such device: the driver's own error */
	}
	return hami_context_take();
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v2, device, context, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
				unsigned int flags, CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v3, device, context, affinity, count, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
				CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v4, device, context, params, flags, device);
}

static CUresult make_primary(CUcontext *context, CUdevice device)
{
	MAKE_CONTEXT(cuDevicePrimaryCtxRetain, device, context, device);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	unsigned int flags;
	int active = 0;
	/* Runtime libraries retain it again and again: only the first makes it. */
	if (real->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active)
		return real->cuDevicePrimaryCtxRetain(context, device);
	return make_primary(context, device);
}

static CUresult destroyed(CUresult result, const void *context)
{
	if (result == CUDA_SUCCESS) {
		uint64_t bytes = hami_table_take_owner(context);
		hami_region_release(hami_region(), HAMI_KIND_DATA, bytes);
		hami_context_gone();
	}
	return result;
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
	const struct real_cuda *real = hami_cuda();
	return real ? destroyed(real->cuCtxDestroy_v2(context), (void *)context) : HAMI_REFUSED;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext context)
{
	const struct real_cuda *real = hami_cuda();
	return real ? destroyed(real->cuCtxDestroy(context), (void *)context) : HAMI_REFUSED;
}

typedef CUresult CUDAAPI end_primary(CUdevice);

/* Release and reset alike: the context is gone when the driver says that none is active any more. */
static CUresult end(const struct real_cuda *real, end_primary *call, CUdevice device)
{
	CUcontext context = NULL;
	unsigned int flags;
	int active = 0;
	if (!call)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (real->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active &&
	    real->cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS)
		real->cuDevicePrimaryCtxRelease_v2(device); /* only its address was wanted */
	CUresult result = call(device);
	bool was_active = active;
	if (result == CUDA_SUCCESS && was_active &&
	    real->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active)
		destroyed(result, (void *)context);
	return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	return real ? end(real, real->cuDevicePrimaryCtxRelease, device) : HAMI_REFUSED;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	return real ? end(real, real->cuDevicePrimaryCtxRelease_v2, device) : HAMI_REFUSED;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	return real ? end(real, real->cuDevicePrimaryCtxReset, device) : HAMI_REFUSED;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	return real ? end(real, real->cuDevicePrimaryCtxReset_v2, device) : HAMI_REFUSED;
}

/* Names of before CUDA 3.2; see the end of memory.c. */
CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
	(void)bytes, (void)device;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	(void)context, (void)flags, (void)device;
	return CUDA_ERROR_NOT_SUPPORTED;
}
