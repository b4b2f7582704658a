/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the driver answers to wrong calls; the same with the interposer as without. */
#include "check.h"

#define SAY(call) printf("%s: %d\n", #call, (int)(call))

int main(void)
{
	CUdeviceptr a = 0, b = 0;
	CUcontext context;
	size_t left, total;
	CUmemGenericAllocationHandle handle = 0;
	SAY(cuMemAlloc(&a, 1024));
	SAY(cuMemGetInfo(&left, &total));
	SAY(cuMemFree(0x1000));
	start();
	SAY(cuMemGetInfo(NULL, &total));
	SAY(cuMemGetInfo(&left, NULL));
	SAY(cuMemGetInfo(NULL, NULL));
	SAY(cuMemAlloc(&a, 0));
	SAY(cuMemFree(0));
	SAY(cuMemFree(0x1234000));
	SAY(cuMemAlloc(&b, 1 << 20));
	SAY(cuMemFree(b));
	SAY(cuMemFree(b));
	SAY(cuMemAllocManaged(&a, 0, CU_MEM_ATTACH_GLOBAL));
	SAY(cuMemFreeAsync(0x1234000, NULL));
	SAY(cuMemCreate(&handle, 2 << 20, NULL, 0));
	SAY(cuMemUnmap(0x1234000, 2 << 20));
	SAY(cuCtxCreate(&context, NULL, 0, 99));
	SAY(cuDevicePrimaryCtxRetain(&context, 99));
	return 0;
}
