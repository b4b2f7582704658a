/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what is left on each device, MiB, after it took as much on the one of index argv[1] as is left there. */
#include "several.h"

int main(int argc, char **argv)
{
	CUdeviceptr a;
	CHECK(argc == 2);
	open_all();
	OK(cuCtxSetCurrent(contexts[atoi(argv[1])]));
	size_t left = free_on(atoi(argv[1])) / (2 * MIB) * 2 * MIB;
	OK(cuMemAlloc(&a, left)); /* frees what the dead held */
	OK(cuMemFree(a));
	for (int i = 0; i < device_count; i++)
		printf("%zu\n", free_on(i) / MIB);
	return 0;
}
