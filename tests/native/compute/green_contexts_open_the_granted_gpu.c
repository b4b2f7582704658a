/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On a machine of two GPUs, of which the job has the one of index argv[1]: a green context, which makes the primary context
 * of its GPU, opens that one and no other.
 */
#include "../interposer/check.h"

static CUresult make(CUgreenCtx *green, CUdevice device)
{
	CUdevResource multiprocessors;
	CUdevResourceDesc desc;
	OK(cuDeviceGetDevResource(device, &multiprocessors, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevResourceGenerateDesc(&desc, &multiprocessors, 1));
	return cuGreenCtxCreate(green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM);
}

static int is_active(CUdevice device)
{
	unsigned int flags;
	int active;
	OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
	return active;
}

int main(int argc, char **argv)
{
	CUgreenCtx green;
	CUcontext context;
	CUdeviceptr a;
	CHECK(argc == 2);
	const CUdevice granted = atoi(argv[1]);
	OK(cuInit(0));
	GIVES(CUDA_ERROR_NOT_PERMITTED, make(&green, 1 - granted));
	CHECK(!is_active(1 - granted));
	OK(make(&green, granted));
	CHECK(is_active(granted));
	OK(cuCtxFromGreenCtx(&context, green));
	OK(cuCtxSetCurrent(context));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, limit_bytes()));
	OK(cuMemAlloc(&a, limit_bytes() / 2));
	OK(cuCtxSynchronize());
	OK(cuGreenCtxDestroy(green));
	CHECK(!is_active(granted));

	/* The last green context takes the primary one along, and its managed memory. */
	OK(cuDevicePrimaryCtxRetain(&context, granted));
	OK(cuCtxSetCurrent(context));
	const size_t before = free_bytes();
	OK(cuMemAllocManaged(&a, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(make(&green, granted));
	OK(cuDevicePrimaryCtxRelease(granted));
	CHECK(is_active(granted) && free_bytes() == before - 100 * MIB);
	OK(cuGreenCtxDestroy(green));
	CHECK(!is_active(granted));
	OK(cuDevicePrimaryCtxRetain(&context, granted));
	OK(cuCtxSetCurrent(context));
	CHECK(free_bytes() == before);
	return 0;
}
