/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context returns when it is destroyed, released for the last time, or reset; managed memory, too. */
#include "check.h"

int main(void)
{
	CUdevice device = start();
	CUcontext own, of_start;
	CUdeviceptr a;
	OK(cuCtxGetCurrent(&of_start));
	size_t before = free_bytes();
	OK(cuCtxCreate(&own, NULL, 0, device));
	size_t inside = free_bytes();
	CHECK(inside <= before);
	for (int i = 0; i < 100; i++)
		OK(cuMemAlloc(&a, 2 * MIB));
	OK(cuMemAllocManaged(&a, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(inside - free_bytes() == 300 * MIB);
	OK(cuCtxDestroy(own));
	OK(cuCtxSetCurrent(of_start));
	CHECK(free_bytes() + 100 * MIB > before);
	CUcontext primary;
	OK(cuDevicePrimaryCtxRetain(&primary, device)); /* a second reference */
	OK(cuCtxSetCurrent(primary));
	OK(cuMemAlloc(&a, 64 * MIB));
	OK(cuMemAllocManaged(&a, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuCtxDestroy(primary) != CUDA_SUCCESS); /* the driver destroys no primary context by this */
	size_t while_retained = free_bytes();
	OK(cuDevicePrimaryCtxRelease(device));
	CHECK(free_bytes() == while_retained); /* the first one still holds it */
	OK(cuDevicePrimaryCtxReset(device));
	OK(cuDevicePrimaryCtxRetain(&primary, device));
	OK(cuCtxSetCurrent(primary));
	CHECK(free_bytes() >= before);
	OK(cuMemAllocManaged(&a, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuDevicePrimaryCtxRelease(device));
	OK(cuDevicePrimaryCtxRetain(&primary, device));
	OK(cuCtxSetCurrent(primary));
	CHECK(free_bytes() + 100 * MIB > before);
	return 0;
}
