/* SPDX-License-Identifier: Apache-2.0 */
/*
 * announcements_under_threads MS: for so long threads announce, launch into every kind of stream, capture, fail to launch,
 * and make and destroy contexts of their own, more one after another than have placeholders at once.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "../../../native/include/hami_hpc.h"
#include "../interposer/check.h"

static CUcontext shared;
static CUfunction kernel;
static atomic_bool over;

static CUresult launch(CUfunction f, unsigned int grid, CUstream stream)
{
	uint64_t ns = 1000;
	void *params[] = {&ns};
	return cuLaunchKernel(f, grid, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static CUstream new_stream(void)
{
	CUstream stream;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static void *announces(void *unused)
{
	OK(cuCtxSetCurrent(shared));
	for (; !over; usleep(50)) {
		CHECK(hami_hint_soon() == 0);
		launch(kernel, 0, NULL); /* of no blocks: it fails */
	}
	return unused;
}

static void *launches(void *unused)
{
	OK(cuCtxSetCurrent(shared));
	const CUstream streams[] = {new_stream(), NULL, CU_STREAM_PER_THREAD, CU_STREAM_LEGACY};
	for (unsigned int i = 0; !over; i++) {
		OK(launch(kernel, 1, streams[i % 4]));
		OK(cuStreamSynchronize(streams[i % 4]));
	}
	OK(cuCtxSynchronize());
	return unused;
}

static void *captures(void *unused)
{
	CUgraph graph;
	CUgraphExec made;
	OK(cuCtxSetCurrent(shared));
	for (const CUstream stream = new_stream(); !over;) {
		OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CHECK(hami_hint_soon() == 0);
		OK(launch(kernel, 1, stream));
		OK(cuStreamEndCapture(stream, &graph));
		OK(cuGraphInstantiateWithFlags(&made, graph, 0));
		CHECK(hami_hint_soon() == 0);
		OK(cuGraphLaunch(made, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuGraphExecDestroy(made));
		OK(cuGraphDestroy(graph));
	}
	return unused;
}

static void *contexts(void *unused)
{
	CUcontext own, before;
	CUmodule module;
	CUfunction its;
	for (int i = 0; !over; i++) {
		OK(cuCtxCreate(&own, NULL, 0, 0));
		OK(cuModuleLoadData(&module, "image"));
		OK(cuModuleGetFunction(&its, module, "sim_spin_ns"));
		CHECK(hami_hint_soon() == 0);
		OK(cuCtxPushCurrent(i % 2 ? shared : own));
		OK(launch(i % 2 ? kernel : its, 1, NULL));
		OK(cuCtxPopCurrent(&before));
		OK(cuCtxDestroy(own));
	}
	return unused;
}

int main(int argc, char **argv)
{
	static void *(*const all[])(void *) = {announces, announces, launches, launches,
					       captures,  contexts,  contexts};
	enum { COUNT = sizeof all / sizeof *all };
	pthread_t threads[COUNT];
	CUmodule module;
	CHECK(argc == 2);
	start();
	OK(cuCtxGetCurrent(&shared));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	for (int i = 0; i < COUNT; i++)
		CHECK(!pthread_create(&threads[i], NULL, all[i], NULL));
	usleep((useconds_t)atoi(argv[1]) * 1000);
	over = 1;
	for (int i = 0; i < COUNT; i++)
		CHECK(!pthread_join(threads[i], NULL));
	return 0;
}
