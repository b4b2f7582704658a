/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void work_is_captured_and_replayed(CUfunction f)
{
	CUstream stream;
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr p;
	CUstreamCaptureStatus status;
	size_t nodes = 0, before = free_memory();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 50 * MIB, stream));
	spin(f, stream, 10 * MS);
	spin(f, stream, 10 * MS);
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(free_memory() == before && state_number("busy_ns") == 0);
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	CHECK(nodes == 4);
	OK(cuGraphInstantiate(&exec, graph, 0));
	uint64_t start = now_ns();
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(now_ns() - start >= 60 * MS);
	CHECK(state_number("busy_ns") == (long long)(60 * MS));
	CHECK(before - free_memory() == 50 * MIB);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	CHECK(free_memory() == before);
	OK(cuStreamDestroy(stream));
}

static void what_cannot_be_captured_breaks_it(CUfunction f)
{
	CUstream stream;
	CUgraph graph;
	CUstreamCaptureStatus status;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	      cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	spin(f, stream, MS);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	CHECK(!graph);
	OK(cuStreamSynchronize(stream)); /* and the stream works again */
	OK(cuStreamDestroy(stream));
}

static void a_rectangle_is_copied(void)
{
	enum { WIDTH = 30, HEIGHT = 4, PITCH = 512 };
	CUdeviceptr p;
	size_t pitch;
	unsigned char from[HEIGHT][40], to[HEIGHT][50] = {{0}};
	OK(cuMemAllocPitch(&p, &pitch, WIDTH, HEIGHT, 4));
	for (int y = 0; y < HEIGHT; y++)
		for (int x = 0; x < 40; x++)
			from[y][x] = (unsigned char)(y * 40 + x);
	CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			    .srcHost = from,
			    .srcPitch = 40,
			    .srcXInBytes = 5,
			    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .dstDevice = p,
			    .dstPitch = pitch,
			    .WidthInBytes = WIDTH,
			    .Height = HEIGHT};
	CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			     .srcDevice = p,
			     .srcPitch = pitch,
			     .dstMemoryType = CU_MEMORYTYPE_HOST,
			     .dstHost = to,
			     .dstPitch = 50,
			     .WidthInBytes = WIDTH,
			     .Height = HEIGHT};
	OK(cuMemcpy2D(&in));
	OK(cuMemcpy2DAsync(&out, NULL));
	OK(cuStreamSynchronize(NULL));
	for (int y = 0; y < HEIGHT; y++)
		CHECK(memcmp(to[y], from[y] + 5, WIDTH) == 0 && to[y][WIDTH] == 0);
	OK(cuMemFree(p));
}

int main(void)
{
	make_machine("h200");
	open_device();
	CUfunction f = spin_function();
	work_is_captured_and_replayed(f);
	what_cannot_be_captured_breaks_it(f);
	a_rectangle_is_copied();
	return 0;
}
