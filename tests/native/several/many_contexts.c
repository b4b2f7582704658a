/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many_contexts COUNT: so many contexts, in turn on each device, all at work; then the primary context of one device is
 * reset, and the others go on.
 */
#include "several.h"

#define MOST 256

int main(int argc, char **argv)
{
	static CUcontext made[MOST];
	CUdeviceptr a;
	CHECK(argc == 2);
	int count = atoi(argv[1]);
	CHECK(count <= MOST);
	open_all();
	for (int i = 0; i < count; i++) {
		size_t others = free_on((i + 1) % device_count);
		OK(cuCtxCreate(&made[i], NULL, 0, i % device_count));
		OK(cuCtxPopCurrent(NULL)); /* the stack of contexts has an end */
		OK(cuCtxSetCurrent(made[i]));
		OK(cuMemAlloc(&a, MIB));
		spin(1, 100);
		CHECK(free_on((i + 1) % device_count) == others);
	}
	size_t second = free_on(1);
	OK(cuCtxSetCurrent(made[1]));
	OK(cuDevicePrimaryCtxReset(0));
	CHECK(free_on(1) == second);
	spin(50, 1000);
	OK(cuCtxSetCurrent(made[0])); /* on the device whose primary context is gone */
	spin(50, 1000);
	for (int i = 0; i < count; i++)
		OK(cuCtxDestroy(made[i]));
	OK(cuCtxSetCurrent(contexts[1]));
	CHECK(free_on(1) > second);
	return 0;
}
