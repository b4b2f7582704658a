/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void large_allocations_are_whole_frames(void)
{
	CUdeviceptr p, q, base;
	size_t size, before = free_memory();
	OK(cuMemAlloc(&p, 3 * MIB));
	CHECK(before - free_memory() == 4 * MIB);
	OK(cuMemGetAddressRange(&base, &size, p + 12345));
	CHECK(base == p && size == 3 * MIB);
	OK(cuMemAlloc(&q, 1024 * MIB));
	CHECK(before - free_memory() == 1028 * MIB);
	OK(cuMemFree(p));
	OK(cuMemFree(q));
	CHECK(free_memory() == before);
}

static void small_allocations_share_a_frame(void)
{
	enum { PER_FRAME = 4096 };
	static CUdeviceptr p[PER_FRAME + 1];
	size_t before = free_memory(), size;
	CUdeviceptr base;
	for (int i = 0; i < PER_FRAME; i++)
		OK(cuMemAlloc(&p[i], 1));
	CHECK(before - free_memory() == 2 * MIB);
	OK(cuMemAlloc(&p[PER_FRAME], 1));
	CHECK(before - free_memory() == 4 * MIB);
	OK(cuMemGetAddressRange(&base, &size, p[7] + 511));
	CHECK(base == p[7] && size == 512);
	for (int i = 0; i < PER_FRAME; i += 2)
		OK(cuMemFree(p[i]));
	GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, p[0]));
	for (int i = 1; i < PER_FRAME; i += 2)
		OK(cuMemFree(p[i]));
	CHECK(before - free_memory() == 2 * MIB);
	OK(cuMemFree(p[PER_FRAME]));
	CHECK(free_memory() == before);
}

static void pieces_do_not_overlap(void)
{
	enum { COUNT = 300 };
	CUdeviceptr p[COUNT];
	size_t size[COUNT];
	srand(1);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < COUNT; i++) {
			size[i] = 1 + (size_t)rand() % 60000;
			OK(cuMemAlloc(&p[i], size[i]));
			OK(cuMemsetD8(p[i], (unsigned char)i, size[i]));
		}
		for (int i = 0; i < COUNT; i++) {
			unsigned char *bytes = malloc(size[i]);
			OK(cuMemcpyDtoH(bytes, p[i], size[i]));
			for (size_t k = 0; k < size[i]; k++)
				CHECK(bytes[k] == (unsigned char)i);
			free(bytes);
			OK(cuMemFree(p[i]));
		}
	}
}

static void the_last_byte_is_the_last(void)
{
	CUdeviceptr p, q;
	size_t available = free_memory();
	CHECK(available % (2 * MIB) == 0);
	OK(cuMemAlloc(&p, available));
	CHECK(free_memory() == 0);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&q, 1));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, available + 1));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, SIZE_MAX));
	CHECK(free_memory() == available);
}

static void mistakes_have_their_errors(void)
{
	CUdeviceptr p;
	size_t pitch;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(4096));
	OK(cuMemFree(0));
	OK(cuMemAlloc(&p, 4 * MIB));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 512));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	OK(cuMemAlloc(&p, 100));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 8));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 100, 10, 3));
	OK(cuMemAllocPitch(&p, &pitch, 100, 10000, 4));
	CHECK(pitch == 512);
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&p, &pitch, SIZE_MAX - 4, 2, 4));
	OK(cuCtxSetCurrent(NULL));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 1));
}

int main(void)
{
	CUdeviceptr p;
	make_machine("h200");
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 1));
	CUcontext context = open_device();
	size_t available, total;
	OK(cuMemGetInfo(&available, &total));
	CHECK(total == 143156 * MIB && total - available == 512 * MIB);
	large_allocations_are_whole_frames();
	small_allocations_share_a_frame();
	pieces_do_not_overlap();
	the_last_byte_is_the_last();
	OK(cuMemAlloc(&p, 10 * MIB));
	mistakes_have_their_errors();
	OK(cuCtxDestroy(context));
	CHECK(state_number("used_bytes") == 0); /* 10 MiB went with their context */
	return 0;
}
