/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

int main(void)
{
	char byte = 0;
	size_t sum = 0;
	CUdeviceptr base, address;
	make_machine("h200");
	watch_memory = hold;
	CUcontext context = open_device();
	OK(cuMemAlloc(&address, 4));
	CHECK(held.count == 4);
	for (int i = 0; i < 3; i++) {
		CUdeviceptr own = held.of[i].map.base;
		CHECK(own && held.of[i].map.length == held.of[i].params.size);
		sum += held.of[i].params.size;
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&byte, own, 1));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(own, &byte, 1));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(&byte, own, 1, NULL));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(address, own, 4));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy(address, own, 4));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(own, 1, 1));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(own));
		GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, NULL, own));
	}
	CHECK(sum == 512 * MIB && (size_t)state_number("context_bytes") == sum);
	OK(cuMemcpyDtoH(&byte, address, 1));
	OK(cuCtxDestroy(context));
	CHECK(held.count == 0 && used_bytes() == 0);
	return 0;
}
