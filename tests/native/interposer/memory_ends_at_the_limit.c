/* SPDX-License-Identifier: Apache-2.0 */
/* The device looks as large as the limit, fills up to exactly that, and once freed takes as much again. */
#include "check.h"

int main(void)
{
	static CUdeviceptr pieces[4096];
	size_t left, total;
	CUdevice device = start();
	OK(cuDeviceTotalMem(&total, device));
	CHECK(total == limit_bytes());
	OK(cuMemGetInfo(&left, &total));
	CHECK(total == limit_bytes());
	CHECK(left < total && left > total / 2); /* the context's own memory counts */
	for (int round = 0; round < 3; round++) {
		size_t count = 0;
		while (cuMemAlloc(&pieces[count], 16 * MIB) == CUDA_SUCCESS)
			count++;
		CHECK(count == left / (16 * MIB));
		CHECK(free_bytes() == left % (16 * MIB));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pieces[count], 16 * MIB));
		size_t rest = free_bytes() / (2 * MIB) * 2 * MIB;
		if (rest) { /* what still fits is given */
			OK(cuMemAlloc(&pieces[count], rest));
			count++;
		}
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pieces[count], 2 * MIB));
		while (count)
			OK(cuMemFree(pieces[--count]));
		CHECK(free_bytes() == left);
	}
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pieces[0], SIZE_MAX / 2));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pieces[0], SIZE_MAX));
	CHECK(free_bytes() == left);
	return 0;
}
