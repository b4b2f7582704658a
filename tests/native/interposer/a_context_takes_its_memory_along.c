/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a context returns when it is destroyed, released for the last time, or reset. */
#include "check.h"

int main(void)
{
	CUdevice device = start();
	CUcontext own;
	CUdeviceptr a;
	size_t before = free_bytes();
	OK(cuCtxCreate(&own, NULL, 0, device));
	size_t inside = free_bytes();
	CHECK(inside <= before);
	for (int i = 0; i < 100; i++)
		OK(cuMemAlloc(&a, 2 * MIB));
	CHECK(inside - free_bytes() == 200 * MIB);
	OK(cuCtxDestroy(own));
	CUcontext primary;
	OK(cuDevicePrimaryCtxRetain(&primary, device)); /* a second reference */
	OK(cuCtxSetCurrent(primary));
	OK(cuMemAlloc(&a, 64 * MIB));
	size_t while_retained = free_bytes();
	OK(cuDevicePrimaryCtxRelease(device));
	CHECK(free_bytes() == while_retained); /* the first one still holds it */
	OK(cuDevicePrimaryCtxReset(device));
	OK(cuDevicePrimaryCtxRetain(&primary, device));
	OK(cuCtxSetCurrent(primary));
	CHECK(free_bytes() >= before);
	return 0;
}
