/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static unsigned char host[3 * 1024 * 1024], back[sizeof host];

static void fill_host(void *unused)
{
	(void)unused;
	usleep(20000);
	memset(host, 0x5a, sizeof host);
}

int main(void)
{
	CUdeviceptr p, q;
	CUstream stream;
	make_machine("h200");
	open_device();
	OK(cuMemAlloc(&p, sizeof host));
	OK(cuMemAlloc(&q, sizeof host));
	for (size_t i = 0; i < sizeof host; i++)
		host[i] = (unsigned char)(i * 7);
	OK(cuMemcpyHtoD(p, host, sizeof host));
	OK(cuMemcpyDtoD(q, p, sizeof host));
	OK(cuMemcpyDtoH(back, q, sizeof host));
	CHECK(memcmp(host, back, sizeof host) == 0);
	OK(cuMemsetD32(q, 0x01020304, 1000));
	OK(cuMemcpyDtoH(back, q, 4004));
	CHECK(back[0] == 4 && back[3999] == 1 && back[4000] == host[4000]);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p + 1, host, sizeof host));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, 4096, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)(uintptr_t)host, back, 1));
	OK(cuMemcpy((CUdeviceptr)(uintptr_t)back, p, sizeof back)); /* unified: any address to any */
	CHECK(memcmp(host, back, sizeof host) == 0);

	/* A copy behind a host function takes what the function wrote. */
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	spin(spin_function(), stream, 20 * MS);
	OK(cuLaunchHostFunc(stream, fill_host, NULL));
	OK(cuMemcpyHtoDAsync(p, host, sizeof host, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(back, p, sizeof back));
	CHECK(back[0] == 0x5a && back[sizeof back - 1] == 0x5a);

	/* Pinned and registered memory is known to the device. */
	void *pinned;
	unsigned type;
	CUdeviceptr address;
	size_t before = free_memory();
	OK(cuMemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE));
	OK(cuMemHostGetDevicePointer(&address, pinned, 0));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
	CHECK(type == CU_MEMORYTYPE_HOST && free_memory() == before);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 64));
	OK(cuMemFreeHost(pinned));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
	OK(cuMemHostRegister(host, sizeof host, 0));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(host, 1, 0));
	OK(cuMemHostUnregister(host));
	GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(host));
	return 0;
}
