// SPDX-License-Identifier: Apache-2.0
/*
 * Measures how much of the GPU's time a process gets. It keeps the GPU busy with kernels that do a fixed amount of work
 * (a count of dependent operations, so that a paused kernel does no less of it) and writes when each one ended.
 *
 *   spin calibrate KERNEL_US                      prints the loop count of a kernel that takes so long alone
 *   spin run LOOPS SECONDS [GRAPH] [WARMUP_S]     prints: kernels/s  worst and best 100 ms window (kernels/s)
 *
 * With GRAPH > 0, kernels are launched as a CUDA graph of so many. WARMUP_S more seconds (default 0.5) before and after are
 * left out, so that tenants which start and end at slightly different times are measured while all of them run.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

#define OK(call)                                                                                                 \
	do {                                                                                                     \
		cudaError_t e_ = (call);                                                                         \
		if (e_ != cudaSuccess) {                                                                         \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_));                              \
			exit(1);                                                                                 \
		}                                                                                                \
	} while (0)

__device__ unsigned long long gpu_ns()
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

__global__ void work(long loops, unsigned long long *ended, unsigned int *next)
{
	unsigned int x = threadIdx.x;
	for (long i = 0; i < loops; i++)
		x = x * 1664525u + 1013904223u;
	if (x == 0x12345678u && loops < 0)
		*next = 0; // never: keeps the loop
	if (blockIdx.x == 0 && threadIdx.x == 0)
		ended[atomicAdd(next, 1u)] = gpu_ns();
}

struct Gpu {
	cudaStream_t stream;
	int blocks;
	unsigned long long *ended;
	unsigned int *next;
};

static const int THREADS = 1024;
static const size_t MOST = 4u << 20;

static Gpu open_gpu()
{
	Gpu g;
	cudaDeviceProp p;
	OK(cudaGetDeviceProperties(&p, 0));
	g.blocks = p.multiProcessorCount * (p.maxThreadsPerMultiProcessor / THREADS);
	OK(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
	OK(cudaMalloc(&g.ended, MOST * sizeof *g.ended));
	OK(cudaMalloc(&g.next, sizeof *g.next));
	OK(cudaMemset(g.next, 0, sizeof *g.next));
	return g;
}

static double time_of(const Gpu &g, long loops, int count)
{
	cudaEvent_t a, b;
	float ms;
	OK(cudaEventCreate(&a));
	OK(cudaEventCreate(&b));
	OK(cudaEventRecord(a, g.stream));
	for (int i = 0; i < count; i++)
		work<<<g.blocks, THREADS, 0, g.stream>>>(loops, g.ended, g.next);
	OK(cudaEventRecord(b, g.stream));
	OK(cudaEventSynchronize(b));
	OK(cudaEventElapsedTime(&ms, a, b));
	OK(cudaMemset(g.next, 0, sizeof *g.next));
	return ms * 1e3 / count;
}

static int calibrate(const Gpu &g, double want_us)
{
	long loops = 1000;
	time_of(g, 100000, 200); // clocks up
	for (int i = 0; i < 6; i++) {
		int count = std::max(3, (int)(50000 / want_us));
		loops = std::max(1L, (long)(loops * want_us / time_of(g, loops, std::min(count, 2000))));
	}
	printf("%ld\n", loops);
	return 0;
}

static int run(const Gpu &g, long loops, double seconds, int graph_size, double warmup)
{
	cudaGraphExec_t graph = nullptr;
	if (graph_size > 0) {
		cudaGraph_t captured;
		OK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal));
		for (int i = 0; i < graph_size; i++)
			work<<<g.blocks, THREADS, 0, g.stream>>>(loops, g.ended, g.next);
		OK(cudaStreamEndCapture(g.stream, &captured));
		OK(cudaGraphInstantiate(&graph, captured, 0));
	}
	// Batches of about 5 ms of work, three in flight: the GPU never waits for the host.
	double us = 5000;
	cudaEvent_t done[3];
	for (auto &e : done)
		OK(cudaEventCreateWithFlags(&e, cudaEventBlockingSync | cudaEventDisableTiming));
	timespec t0, t1;
	clock_gettime(CLOCK_MONOTONIC, &t0);
	size_t launched = 0;
	int per_batch = std::max(1, graph_size > 0 ? 1 : (int)(us / (loops * 0.0035 + 3)));
	for (int i = 0;; i++) {
		clock_gettime(CLOCK_MONOTONIC, &t1);
		double passed = (t1.tv_sec - t0.tv_sec) + (t1.tv_nsec - t0.tv_nsec) * 1e-9;
		if (passed > seconds + 2 * warmup || launched + 2 * per_batch * std::max(1, graph_size) > MOST)
			break;
		if (i >= 3)
			OK(cudaEventSynchronize(done[i % 3]));
		for (int k = 0; k < per_batch; k++) {
			if (graph)
				OK(cudaGraphLaunch(graph, g.stream));
			else
				work<<<g.blocks, THREADS, 0, g.stream>>>(loops, g.ended, g.next);
			launched += std::max(1, graph_size);
		}
		OK(cudaEventRecord(done[i % 3], g.stream));
	}
	OK(cudaStreamSynchronize(g.stream));
	std::vector<unsigned long long> t(launched);
	OK(cudaMemcpy(t.data(), g.ended, launched * sizeof t[0], cudaMemcpyDeviceToHost));
	std::sort(t.begin(), t.end());
	unsigned long long from = t[0] + (unsigned long long)(warmup * 1e9);
	unsigned long long to = t[0] + (unsigned long long)((seconds + warmup) * 1e9);
	auto count = [&](unsigned long long a, unsigned long long b) {
		return (double)(std::lower_bound(t.begin(), t.end(), b) - std::lower_bound(t.begin(), t.end(), a));
	};
	to = std::min(to, t.back());
	double rate = count(from, to) / ((to - from) * 1e-9), least = 1e30, most = 0;
	for (unsigned long long a = from; a + 100000000ull <= to; a += 7000000ull) {
		double r = count(a, a + 100000000ull) * 10;
		least = std::min(least, r);
		most = std::max(most, r);
	}
	printf("%.3f %.3f %.3f\n", rate, least, most);
	return 0;
}

int main(int argc, char **argv)
{
	Gpu g = open_gpu();
	if (argc == 3 && !strcmp(argv[1], "calibrate"))
		return calibrate(g, atof(argv[2]));
	if (argc >= 4 && !strcmp(argv[1], "run"))
		return run(g, atol(argv[2]), atof(argv[3]), argc > 4 ? atoi(argv[4]) : 0, argc > 5 ? atof(argv[5]) : 0.5);
	fprintf(stderr, "usage: spin calibrate KERNEL_US | spin run LOOPS SECONDS [GRAPH] [WARMUP_S]\n");
	return 2;
}
