/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First versions that differ from today's in nothing but the name. (Those with 32-bit addresses are not here:
 * no program of a 64-bit system can use them.)
 */
#include "sim_cuda.h"

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	return cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	return cuCtxPopCurrent_v2(context);
}

CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuMemHostRegister(void *address, size_t size, unsigned int flags)
{
	return cuMemHostRegister_v2(address, size, flags);
}
