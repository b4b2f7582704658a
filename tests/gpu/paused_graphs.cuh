// SPDX-License-Identifier: Apache-2.0
/*
 * Cases of paused.cu with graphs: those that decide and launch on the device while they are paused, and captures beside
 * other threads' work.
 */
#pragma once

#include <atomic>
#include <thread>

#include "paused.cuh"

/* Says whether the graph's IF is taken, by the data, and how often its WHILE is. */
static __global__ void decide(const u32 *x, u32 *left, u32 loops, cudaGraphConditionalHandle taken)
{
	*left = loops;
	cudaGraphSetConditional(taken, x[0] >> 16 & 1);
}

static __global__ void count_down(u32 *left, cudaGraphConditionalHandle again)
{
	*left = *left - 1;
	cudaGraphSetConditional(again, *left > 0);
}

/* Adds a conditional node to `graph`, after `after`; returns the graph of its body. */
static cudaGraph_t add_conditional(cudaGraph_t graph, cudaGraphNode_t *after,
				   cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type)
{
	cudaGraphNodeParams node = {};
	node.type = cudaGraphNodeTypeConditional;
	node.conditional.handle = handle;
	node.conditional.type = type;
	node.conditional.size = 1;
	OK(cudaGraphAddNode(after, graph, after, nullptr, 1, &node));
	return node.conditional.phGraph_out[0];
}

/* Captures what `submit` launches into `graph`, which is empty. */
template <class Submit> static void capture_into(cudaGraph_t graph, cudaStream_t stream, Submit submit)
{
	OK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
					 cudaStreamCaptureModeThreadLocal));
	submit();
	OK(cudaStreamEndCapture(stream, &graph));
}

static void conditional(Run &run)
{
	const u32 n = 1 << 16, loops = 40, times = 20000, launches = 6;
	const Affine in_if = Affine::random(run.seed), in_while = Affine::random(~run.seed);
	u32 *x = on_device<u32>(n), *left = on_device<u32>(1);
	cudaStream_t stream = new_stream();
	cudaGraph_t graph;
	cudaGraphNode_t last;
	cudaGraphConditionalHandle taken, again;
	cudaGraphExec_t exec;
	OK(cudaGraphCreate(&graph, 0));
	OK(cudaGraphConditionalHandleCreate(&taken, graph, 0, 0));
	OK(cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault));
	capture_into(graph, stream, [&] {
		decide<<<1, 1, 0, stream>>>(x, left, loops, taken);
		OK(cudaGetLastError());
	});
	size_t count = 1;
	OK(cudaGraphGetNodes(graph, &last, &count));
	cudaGraph_t body = add_conditional(graph, &last, taken, cudaGraphCondTypeIf);
	capture_into(body, stream, [&] { launch_apply(x, n, in_if, times, stream); });
	body = add_conditional(graph, &last, again, cudaGraphCondTypeWhile);
	capture_into(body, stream, [&] {
		launch_apply(x, n, in_while, times, stream);
		count_down<<<1, 1, 0, stream>>>(left, again);
		OK(cudaGetLastError());
	});
	OK(cudaGraphInstantiate(&exec, graph, 0));
	while (run.more()) {
		run.go();
		launch_fill(x, n, run.key(0), stream);
		for (u32 i = 0; i < launches; i++)
			OK(cudaGraphLaunch(exec, stream));
		run.done();
		Affine all;
		for (u32 i = 0; i < launches; i++) {
			if (all((u32)mix(run.key(0))) >> 16 & 1)
				all = all.then(in_if.times(times));
			all = all.then(in_while.times((u64)times * loops));
		}
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, all, run.key(0), "conditional");
	}
}

/* Launches its own graph again, as often as `left` says, and tells the host when that ends: 1, or 2 + an error. */
static __global__ void launch_again(u32 *left, volatile u32 *ended)
{
	*left = *left - 1;
	cudaError_t error = cudaSuccess;
	if (*left)
		error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
	if (*left && error == cudaSuccess)
		return;
	__threadfence_system();
	*ended = error == cudaSuccess ? 1 : 2 + (u32)error;
}

static void tail_launch(Run &run)
{
	const u32 n = 1 << 18, times = 20000, launches = 30;
	const Affine f = Affine::random(run.seed);
	u32 *x = on_device<u32>(n), *left = on_device<u32>(1);
	volatile u32 *ended = pinned<u32>(1);
	cudaStream_t stream = new_stream();
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	launch_apply(x, n, f, times, stream);
	launch_again<<<1, 1, 0, stream>>>(left, ended);
	OK(cudaGetLastError());
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch));
	OK(cudaGraphUpload(exec, stream));
	while (run.more()) {
		*ended = 0;
		run.go();
		OK(cudaMemcpyAsync(left, &launches, sizeof launches, cudaMemcpyHostToDevice, stream));
		launch_fill(x, n, run.key(0), stream);
		OK(cudaGraphLaunch(exec, stream));
		for (double begun = now(); !*ended; usleep(100))
			if (now() - begun > 60)
				fail("tail_launch: it did not end within 60 s");
		if (*ended != 1)
			fail("tail_launch: error %u on the device", *ended - 2);
		run.done();
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, f.times((u64)times * launches), run.key(0), "tail_launch");
	}
}

/* Another thread with work of its own, so that work is outstanding while the main one captures. */
class Background
{
	static const u32 N = 1 << 16, TIMES = 50000;
	std::atomic<bool> ready{false}, stop{false};
	std::thread thread;

	void work()
	{
		cudaStreamCaptureMode mode =
			cudaStreamCaptureModeRelaxed; // this thread may wait while another captures
		OK(cudaThreadExchangeStreamCaptureMode(&mode));
		cudaStream_t stream = new_stream();
		cudaEvent_t done[2] = {new_event(), new_event()};
		u32 *x = on_device<u32>(N);
		Affine f = Affine::random(1);
		u64 count = 0;
		launch_fill(x, N, 1, stream);
		for (; !stop; count++) {
			if (count >= 2)
				OK(cudaEventSynchronize(done[count % 2]));
			launch_apply(x, N, f, TIMES, stream);
			OK(cudaEventRecord(done[count % 2], stream));
			ready = true;
		}
		OK(cudaStreamSynchronize(stream));
		std::vector<u32> result(N);
		OK(cudaMemcpyAsync(result.data(), x, N * sizeof *x, cudaMemcpyDeviceToHost, stream));
		OK(cudaStreamSynchronize(stream));
		check(result.data(), N, f.times(TIMES * count), 1, "captures, the other thread");
	}

      public:
	Background() : thread([this] { work(); })
	{
		while (!ready)
			usleep(100);
	}

	~Background()
	{
		stop = true;
		thread.join();
	}
};

/* Captures a graph of two streams, slowly, while other threads keep the GPU busy; then launches it. Modes take turns. */
static void captures(Run &run)
{
	static const cudaStreamCaptureMode modes[] = {
		cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
	const u32 n = 1 << 16, times = 40000, nodes = 20;
	u32 *x = on_device<u32>(n), *y = on_device<u32>(n);
	cudaStream_t stream = new_stream(), branch = new_stream();
	cudaEvent_t fork = new_event(), join = new_event();
	OK(cudaDeviceSynchronize());
	Background one, two;
	while (run.more()) {
		Affine f = Affine::random(run.key(1));
		cudaGraph_t graph;
		cudaGraphExec_t exec;
		run.go();
		launch_fill(x, n, run.key(0), stream);
		launch_fill(y, n, run.key(2), stream);
		OK(cudaStreamBeginCapture(stream, modes[run.round % 3]));
		OK(cudaEventRecord(fork, stream));
		OK(cudaStreamWaitEvent(branch, fork, 0));
		for (u32 i = 0; i < nodes; i++) {
			launch_apply(x, n, f, times, stream);
			launch_apply(y, n, f, times, branch);
			usleep(500); // 10 ms in all: the interposer looks every 2 ms or more often
		}
		OK(cudaEventRecord(join, branch));
		OK(cudaStreamWaitEvent(stream, join, 0));
		OK(cudaStreamEndCapture(stream, &graph));
		OK(cudaGraphInstantiate(&exec, graph, 0));
		OK(cudaGraphLaunch(exec, stream));
		run.done(stream);
		OK(cudaGraphExecDestroy(exec));
		OK(cudaGraphDestroy(graph));
		std::vector<u32> result(n);
		for (u32 *from : {x, y}) {
			OK(cudaMemcpyAsync(result.data(), from, n * sizeof *from, cudaMemcpyDeviceToHost,
					   stream));
			OK(cudaStreamSynchronize(stream));
			run.add(result);
			check(result.data(), n, f.times((u64)times * nodes), run.key(from == x ? 0 : 2),
			      "captures");
		}
	}
}
