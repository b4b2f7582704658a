/* SPDX-License-Identifier: Apache-2.0 */
/* The interposer is loaded but no limits can be read: CUDA does not open. */
#include "check.h"

int main(void)
{
	int count;
	CUdeviceptr a;
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuInit(0));
	CHECK(cuDeviceGetCount(&count) != CUDA_SUCCESS);
	CHECK(cuMemAlloc(&a, 1024) != CUDA_SUCCESS);
	return 0;
}
