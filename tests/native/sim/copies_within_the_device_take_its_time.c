/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#define BYTES (8 * MIB)
#define COPY_GB_PER_S 2080 /* of the model; also bytes per ns */
#define FILL_GB_PER_S 4570

static CUstream stream;

/* How long the GPU ran for what was put into stream. */
static long long time_of(CUresult result)
{
	static long long before;
	OK(result);
	OK(cuStreamSynchronize(stream));
	long long busy = state_number("busy_ns"), ns = busy - before;
	before = busy;
	return ns;
}

static void take_the_compute_engine(CUdeviceptr p, CUdeviceptr q)
{
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			      .srcDevice = p,
			      .srcPitch = 2048,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			      .dstDevice = q,
			      .dstPitch = 2048,
			      .WidthInBytes = 1000,
			      .Height = 4096};
	CHECK(time_of(cuMemcpyDtoDAsync(q, p, BYTES, stream)) == BYTES / COPY_GB_PER_S);
	CHECK(time_of(cuMemcpyAsync(q, p, BYTES, stream)) == BYTES / COPY_GB_PER_S);
	CHECK(time_of(cuMemsetD8Async(q, 1, BYTES, stream)) == BYTES / FILL_GB_PER_S);
	CHECK(time_of(cuMemsetD32Async(q, 1, BYTES / 4, stream)) == BYTES / FILL_GB_PER_S);
	CHECK(time_of(cuMemcpy2DAsync(&rows, stream)) == 4096000 / COPY_GB_PER_S);
	CHECK(time_of(cuMemcpyDtoDAsync(q, p, 1000, stream)) == 0);
}

static void take_a_copy_engine(CUdeviceptr p, CUdeviceptr q, CUcontext first)
{
	CUdeviceptr other;
	CUcontext second;
	void *host = malloc(BYTES);
	CHECK(host);
	memset(host, 7, BYTES);
	CHECK(time_of(cuMemcpyHtoDAsync(q, host, BYTES, stream)) == 0);
	CHECK(time_of(cuMemcpyDtoHAsync(host, q, BYTES, stream)) == 0);
	CHECK(time_of(cuMemcpyAsync(q, (CUdeviceptr)(uintptr_t)host, BYTES, stream)) == 0);
	OK(cuCtxCreate(&second, NULL, 0, 1));
	OK(cuMemAlloc(&other, BYTES));
	OK(cuCtxSetCurrent(first));
	CHECK(time_of(cuMemcpyPeerAsync(other, second, p, first, BYTES, stream)) == 0);
	free(host);
}

int main(void)
{
	CUdeviceptr p, q;
	unsigned char byte;
	make_machine("h200 h200");
	CUcontext context = open_device();
	OK(cuMemAlloc(&p, BYTES));
	OK(cuMemAlloc(&q, BYTES));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	take_the_compute_engine(p, q);
	take_a_copy_engine(p, q, context);
	CHECK(state_number("launches") == 0);
	/* In order with kernels, and asynchronous: a fill behind a kernel is outstanding as long as it. */
	spin(spin_function(), stream, 50 * MS);
	OK(cuMemsetD8Async(q, 9, BYTES, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	CHECK(time_of(CUDA_SUCCESS) == (long long)(50 * MS + BYTES / FILL_GB_PER_S));
	/* A copy to the host waits for one that is before it in its stream. */
	OK(cuMemsetD8(q, 5, BYTES));
	OK(cuMemcpyDtoH(&byte, q, 1));
	CHECK(byte == 5 && time_of(CUDA_SUCCESS) == (long long)(BYTES / FILL_GB_PER_S));
	return 0;
}
