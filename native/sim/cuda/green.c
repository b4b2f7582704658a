/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: each is a reference to its device's primary context, and has all of the multiprocessors. */
#include "sim_cuda.h"

#include <stdlib.h>

#define DESC_MAGIC 0x64657363u
#define GREEN_MAGIC 0x67726565u
#define MULTIPROCESSORS 132

struct CUdevResourceDesc_st {
	uint32_t magic;
};

struct CUgreenCtx_st {
	uint32_t magic;
	CUdevice device;
	CUcontext context;
};

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
	SIM_ENTER(cuDeviceGetDevResource);
	SIM_CHECK(sim_check_device(device));
	if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = (CUdevResource){.type = type, .sm.smCount = MULTIPROCESSORS};
	return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int count)
{
	SIM_ENTER(cuDevResourceGenerateDesc);
	if (!desc || !resources || count != 1 || resources->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*desc = malloc(sizeof **desc);
	if (!*desc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*desc)->magic = DESC_MAGIC;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
	SIM_ENTER(cuGreenCtxCreate);
	SIM_CHECK(sim_check_device(device));
	if (!green || !desc || desc->magic != DESC_MAGIC || flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUgreenCtx_st *g = malloc(sizeof *g);
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*g = (struct CUgreenCtx_st){.magic = GREEN_MAGIC, .device = device};
	CUresult result = sim_primary_retain(&g->context, device);
	if (result == CUDA_SUCCESS)
		*green = g;
	else
		free(g);
	return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	SIM_ENTER(cuCtxFromGreenCtx);
	if (!context || !green || green->magic != GREEN_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*context = green->context;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	SIM_ENTER(cuGreenCtxDestroy);
	if (!green || green->magic != GREEN_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_primary_end(green->device, false);
	green->magic = 0;
	free(green);
	return result;
}
