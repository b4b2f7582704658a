/* SPDX-License-Identifier: Apache-2.0 */
/* What a context says of itself. */
#include "sim_cuda.h"

CUresult cuCtxGetDevice(CUdevice *device)
{
	SIM_ENTER_CONTEXT(cuCtxGetDevice, c);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = c->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	SIM_ENTER_CONTEXT(cuCtxSynchronize, c);
	sim_context_drain(c);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	SIM_ENTER_CONTEXT(cuCtxGetFlags, c);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
	SIM_ENTER(cuCtxGetApiVersion);
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		SIM_CHECK(sim_context(&context));
	if (context->magic != SIM_CONTEXT_MAGIC)
		return CUDA_ERROR_INVALID_CONTEXT;
	*version = context->version;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	SIM_ENTER(cuCtxGetId);
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		SIM_CHECK(sim_context(&context));
	if (context->magic != SIM_CONTEXT_MAGIC)
		return CUDA_ERROR_INVALID_CONTEXT;
	*id = context->id;
	return CUDA_SUCCESS;
}
