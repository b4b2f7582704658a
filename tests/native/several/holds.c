/* SPDX-License-Identifier: Apache-2.0 */
/* holds MIB...: takes so much on each device (0: not even a context), says so on standard output, and waits. */
#include "several.h"

int main(int argc, char **argv)
{
	CUdeviceptr a;
	read_limits();
	CHECK(argc == 1 + device_count);
	OK(cuInit(0));
	for (int i = 0; i < device_count; i++) {
		size_t mib = (size_t)atoi(argv[1 + i]);
		if (!mib)
			continue;
		OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
		OK(cuCtxSetCurrent(contexts[i]));
		OK(cuMemAlloc(&a, mib * MIB));
	}
	printf("held\n");
	fflush(stdout);
	pause();
	return 0;
}
