/* SPDX-License-Identifier: Apache-2.0 */
/* On a machine of two GPUs, of which the job has the one of index argv[1]: opens that one and no other. */
#include "../interposer/check.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int granted = atoi(argv[1]), count;
	CUcontext context;
	CUdeviceptr a;
	size_t total;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == 2);
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuDevicePrimaryCtxRetain(&context, 1 - granted));
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuCtxCreate(&context, NULL, 0, 1 - granted));
	OK(cuDeviceTotalMem(&total, granted));
	CHECK(total == limit_bytes());
	OK(cuCtxCreate(&context, NULL, 0, granted));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, limit_bytes()));
	OK(cuMemAlloc(&a, limit_bytes() / 2));
	return 0;
}
