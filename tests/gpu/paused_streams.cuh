// SPDX-License-Identifier: Apache-2.0
/*
 * Cases of paused.cu between kernels: copies, callbacks, memory in stream order and events, which are under way in
 * several streams when the GPU's work is paused.
 */
#pragma once

#include <atomic>

#include "paused.cuh"

/* Four streams, each: host to device, kernel, within the device, back to the host. The last one's host memory is pageable. */
static void copies(Run &run)
{
	const u32 n = 1 << 19, times = 40000, streams = 4, parts = 6;
	cudaStream_t stream[streams];
	u32 *a[streams], *b[streams], *in[streams], *out[streams];
	for (u32 s = 0; s < streams; s++) {
		stream[s] = new_stream();
		a[s] = on_device<u32>(n);
		b[s] = on_device<u32>(n);
		bool pageable = s == streams - 1;
		in[s] = pageable ? new u32[(size_t)n * parts] : pinned<u32>((size_t)n * parts);
		out[s] = pageable ? new u32[(size_t)n * parts] : pinned<u32>((size_t)n * parts);
	}
	for (u32 s = 0; s < streams; s++)
		for (u32 k = 0; k < n * parts; k++)
			in[s][k] = (u32)mix(run.key(s) + k);
	while (run.more()) {
		Affine f = Affine::random(run.key(streams));
		size_t bytes = n * sizeof(u32);
		run.go();
		for (u32 part = 0; part < parts; part++)
			for (u32 s = 0; s < streams; s++) {
				size_t at = (size_t)part * n;
				OK(cudaMemcpyAsync(a[s], in[s] + at, bytes, cudaMemcpyHostToDevice,
						   stream[s]));
				launch_apply(a[s], n, f, times, stream[s]);
				for (u32 i = 0; i < 10; i++) // there and back, and there
					OK(cudaMemcpyAsync(i % 2 ? a[s] : b[s], i % 2 ? b[s] : a[s], bytes,
							   cudaMemcpyDeviceToDevice, stream[s]));
				OK(cudaMemcpyAsync(b[s], a[s], bytes, cudaMemcpyDeviceToDevice, stream[s]));
				OK(cudaMemcpyAsync(out[s] + at, b[s], bytes, cudaMemcpyDeviceToHost,
						   stream[s]));
			}
		run.done();
		Affine all = f.times(times);
		for (u32 s = 0; s < streams; s++)
			for (u32 i = 0; i < n * parts; i++) {
				if (out[s][i] != all(in[s][i]))
					fail("copies: stream %u: element %u is %08x, not %08x", s, i,
					     out[s][i], all(in[s][i]));
				if (i % 16 == 0)
					run.add(out[s][i]);
			}
	}
}

/* What a callback does: applies `f` to `x`, and counts. */
struct HostWork {
	u32 *x, n;
	Affine f;
	std::atomic<u32> calls;
	std::atomic<int> error;
};

static void CUDART_CB host_work(void *data)
{
	HostWork *work = (HostWork *)data;
	for (u32 i = 0; i < work->n; i++)
		work->x[i] = work->f(work->x[i]);
	work->calls++;
}

static void CUDART_CB host_callback(cudaStream_t, cudaError_t status, void *data)
{
	if (status)
		((HostWork *)data)->error = (int)status;
	host_work(data);
}

/* Two streams where kernels and the host take turns: by cuLaunchHostFunc, and by cudaStreamAddCallback. */
static void callbacks(Run &run)
{
	const u32 n = 1 << 14, times = 100000, turns = 24;
	u32 *x[2];
	HostWork work[2];
	cudaStream_t stream[2];
	for (u32 s = 0; s < 2; s++) {
		x[s] = on_device<u32>(n);
		work[s].x = pinned<u32>(n);
		work[s].n = n;
		stream[s] = new_stream();
	}
	while (run.more()) {
		Affine f = Affine::random(run.key(2));
		run.go();
		for (u32 s = 0; s < 2; s++) {
			work[s].f = Affine::random(run.key(3 + s));
			work[s].calls = 0;
			work[s].error = 0;
			launch_fill(x[s], n, run.key(s), stream[s]);
			for (u32 turn = 0; turn < turns; turn++) {
				launch_apply(x[s], n, f, times, stream[s]);
				OK(cudaMemcpyAsync(work[s].x, x[s], n * sizeof(u32), cudaMemcpyDeviceToHost,
						   stream[s]));
				if (s)
					OK(cudaStreamAddCallback(stream[s], host_callback, &work[s], 0));
				else
					OK(cuLaunchHostFunc(stream[s], host_work, &work[s]));
				OK(cudaMemcpyAsync(x[s], work[s].x, n * sizeof(u32), cudaMemcpyHostToDevice,
						   stream[s]));
			}
		}
		run.done();
		for (u32 s = 0; s < 2; s++) {
			if (work[s].calls != turns || work[s].error)
				fail("callbacks: %u of %u calls, error %d", work[s].calls.load(), turns,
				     work[s].error.load());
			Affine turn = f.times(times).then(work[s].f);
			std::vector<u32> result = fetch(x[s], n);
			run.add(result);
			check(result.data(), n, turn.times(turns), run.key(s), "callbacks");
		}
	}
}

static __global__ void sum_up(const u32 *x, u32 n, unsigned long long *sum)
{
	unsigned long long mine = 0;
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		mine += x[i];
	atomicAdd(sum, mine);
}

/* Allocates in one stream, uses and frees in another, in four pairs of streams; a round ends with an empty pool. */
static void ordered(Run &run)
{
	const u32 pairs = 4, slots = 64, times = 200000;
	cudaStream_t from[pairs], to[pairs];
	cudaEvent_t filled[pairs];
	unsigned long long *sums = on_device<unsigned long long>(slots);
	for (u32 p = 0; p < pairs; p++) {
		from[p] = new_stream();
		to[p] = new_stream();
		filled[p] = new_event();
	}
	while (run.more()) {
		Affine f = Affine::random(run.key(slots));
		auto size = [&](u32 slot) { return 1000 + (u32)(mix(run.key(slot)) % 100000); };
		run.go();
		OK(cudaMemset(sums, 0, slots * sizeof *sums));
		OK(cudaDeviceSynchronize());
		for (u32 slot = 0; slot < slots; slot++) {
			u32 *x, n = size(slot), p = slot % pairs;
			OK(cudaMallocAsync(&x, n * sizeof *x, from[p]));
			launch_fill(x, n, run.key(slot), from[p]);
			OK(cudaEventRecord(filled[p], from[p]));
			OK(cudaStreamWaitEvent(to[p], filled[p], 0));
			launch_apply(x, n, f, times, to[p]);
			sum_up<<<64, 256, 0, to[p]>>>(x, n, sums + slot);
			OK(cudaGetLastError());
			OK(cudaFreeAsync(x, to[p]));
		}
		run.done();
		std::vector<unsigned long long> result = fetch(sums, slots);
		Affine all = f.times(times);
		for (u32 slot = 0; slot < slots; slot++) {
			u64 sum = 0;
			for (u32 i = 0, n = size(slot); i < n; i++)
				sum += all((u32)mix(run.key(slot) + i));
			run.add(result[slot]);
			if (result[slot] != sum)
				fail("ordered: sum %u is %016llx, not %016lx", slot, result[slot], sum);
		}
	}
}

/* Eight streams work on the same memory in turn, each after the event of the one before it; the host waits for some. */
static void events(Run &run)
{
	const u32 n = 1 << 16, streams = 8, steps = 240;
	u32 *x = on_device<u32>(n);
	cudaStream_t stream[streams];
	cudaEvent_t done[streams], begin, end;
	Affine f[streams];
	for (u32 s = 0; s < streams; s++) {
		stream[s] = new_stream();
		done[s] = new_event();
		f[s] = Affine::random(run.seed + s);
	}
	OK(cudaEventCreate(&begin));
	OK(cudaEventCreate(&end));
	while (run.more()) {
		Affine all;
		run.go();
		launch_fill(x, n, run.key(0), stream[0]);
		OK(cudaEventRecord(begin, stream[0]));
		for (u32 step = 0; step < steps; step++) {
			u32 s = step % streams, times = step % 3 ? 100 : 60000;
			if (step)
				OK(cudaStreamWaitEvent(stream[s], done[(step - 1) % streams], 0));
			launch_apply(x, n, f[s], times, stream[s]);
			OK(cudaEventRecord(done[s], stream[s]));
			all = all.then(f[s].times(times));
			if (step % 60 == 59)
				OK(cudaEventSynchronize(done[s]));
		}
		OK(cudaEventRecord(end, stream[(steps - 1) % streams]));
		run.done();
		float ms = -1;
		OK(cudaEventElapsedTime(&ms, begin, end));
		if (!(ms > 0))
			fail("events: %f ms between two events with work between them", ms);
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, all, run.key(0), "events");
	}
}
