/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes what the GPU has left, less than the limit: the driver says that it is full, for managed memory too.
 */
#include "../interposer/check.h"

int main(void)
{
	CUdeviceptr address;
	size_t piece = 64 * MIB;
	start();
	CHECK(fill(piece) * piece < limit_bytes());
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&address, piece, CU_MEM_ATTACH_GLOBAL));
	return 0;
}
