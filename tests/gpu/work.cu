// SPDX-License-Identifier: Apache-2.0
/*
 * Work of every kind, and how much of the GPU's time it got or how long it took. One line of JSON.
 *
 *   work calibrate                     {"loops_per_us": ...}: for LOOPS below
 *   work KIND SECONDS LOOPS [NAME=VALUE ...]
 *
 * Kinds that keep the GPU busy; "rate" is units of work per second, "worst" and "best" that of any 100 ms:
 *   kernels us=1000      kernels of so many microseconds, in one stream
 *   streams us=1000      the same in 64 streams        contexts  in 4 contexts      green  in 8 green contexts
 *   graph us=100         a graph of 100 kernels        tail      a graph on the device that launches itself
 *   persistent           one kernel that ends with the program
 *   copies               within the device, 256 MiB    memsets   1 GiB
 *   bursts on=300 off=3000   kernels of 1 ms for `on` ms after `off` ms of idling; the rate is within the bursts
 *   steps us=1000 gap=1500   one kernel, waited for; then nothing for `gap` us: a program whose GPU waits for its CPU
 *   transfers in=1 out=1 bytes=67108864   copies from page-locked memory of the host and to it, both at once
 *   memory us=100        256 MiB allocated, a kernel, freed again
 *   making us=100        a context made, a kernel in it, destroyed again
 *   starting             programs of one kernel, each started when the one before has ended
 *   once us=1000 count=20 end=0   so many kernels, waited for; it ends by exit (0), _exit (1) or SIGKILL (2)
 * Kinds that wait for each request; p50, p99, mean (us) from its start to its end, "rate" requests per second:
 *   requests us=13 every=1000 count=1 copy=0   `copy` bytes from the host, then `count` kernels, each `every` us;
 *                        list=1: also each one's start (us of CLOCK_REALTIME) and length to standard error;
 *                        phase=US: the first begins when so much of a 50 ms of CLOCK_REALTIME has passed
 *                        pace=US: each kernel is launched so long after the one before, as a slow CPU does
 *                        random=1: they come at random, `every` us apart on average
 *                        hint=US: says so long before it begins that it comes soon, by hami_hpc.h
 *                        hold=US behind=N writes=N: launches a placeholder of its own so long before (placeholder.cuh)
 *
 * SECONDS are measured; warm=S (default 0.5) before and after are left out. begin=T (s since 1970) measures from that
 * time on, so that tenants that start at different times are measured while all of them run. LOOPS is what calibrate
 * printed.
 */
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "../../native/include/hami_hpc.h"

#define OK(call)                                                                                             \
	do {                                                                                                 \
		int e_ = (int)(call);                                                                        \
		if (e_) {                                                                                    \
			fprintf(stderr, "%s: error %d\n", #call, e_);                                        \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

static double seconds, warm = 0.5, loops_per_us;
static int options;
static char **option;

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double begin_at; // of what is measured, on now()'s clock; 0: as soon as it is warm

static double end_at(double start)
{
	return std::max(start + warm, begin_at) + seconds + warm;
}

static double get(const char *name, double otherwise)
{
	size_t n = strlen(name);
	for (int i = 0; i < options; i++)
		if (!strncmp(option[i], name, n) && option[i][n] == '=')
			return atof(option[i] + n + 1);
	return otherwise;
}

__device__ unsigned int turn(long loops)
{
	unsigned int x = threadIdx.x;
	for (long i = 0; i < loops; i++)
		x = x * 1664525u + 1013904223u;
	return x;
}

__global__ void work(long loops, unsigned int *out)
{
	if (turn(loops) == 0x12345678u && loops < 0)
		*out = 0; // never: keeps the loop
}

/* Each block counts its rounds in rounds[blockIdx.x], until the host says stop; all on the device, as 264 blocks that read
 * the host's memory wait for one another longer than a round takes. */
__global__ void endless(long loops, volatile unsigned int *rounds, volatile int *stop, unsigned int *out)
{
	__shared__ int end;
	for (end = 0; !end;) {
		if (turn(loops) == 0x12345678u && loops < 0)
			*out = 0;
		__syncthreads();
		if (threadIdx.x == 0) {
			rounds[blockIdx.x] = rounds[blockIdx.x] + 1;
			end = *stop;
		}
		__syncthreads();
	}
}

/* A graph on the device whose last kernel launches it again, until the host says stop. */
__global__ void again(cudaGraphExec_t *self, volatile unsigned long long *count, volatile int *stop)
{
	*count = *count + 1;
	if (!*stop)
		cudaGraphLaunch(*self, cudaStreamGraphTailLaunch);
}

static const int THREADS = 1024;
static int blocks;

static void launch(double us, cudaStream_t stream, int of_blocks = 0)
{
	work<<<of_blocks ? of_blocks : blocks, THREADS, 0, stream>>>((long)(us * loops_per_us), nullptr);
}

static void print_requests(std::vector<double> &us, double rate)
{
	std::sort(us.begin(), us.end());
	double sum = 0;
	for (double x : us)
		sum += x;
	auto at = [&](double q) { return us.empty() ? 0 : us[std::min(us.size() - 1, (size_t)(q * us.size()))]; };
	printf("{\"rate\": %.3f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f, \"mean\": %.1f}\n", rate,
	       at(0.5), at(0.9), at(0.99), us.empty() ? 0 : us.back(), us.empty() ? 0 : sum / us.size());
}

/* When a unit of work ended, seconds, and how many there were by then. */
struct Mark {
	double at, count;
};

/* Prints the rate within [warm, warm + seconds] of the first mark, and the extremes of 100 ms. */
static void print_rate(const std::vector<Mark> &marks)
{
	double from = std::max(marks.front().at + warm, begin_at), to = std::min(from + seconds, marks.back().at);
	auto count = [&](double at) { // linear between marks
		size_t i = std::lower_bound(marks.begin(), marks.end(), at, [](const Mark &m, double t) { return m.at < t; }) -
			   marks.begin();
		if (i == 0)
			return marks[0].count;
		if (i == marks.size())
			return marks.back().count;
		const Mark &a = marks[i - 1], &b = marks[i];
		return a.count + (b.count - a.count) * (b.at > a.at ? (at - a.at) / (b.at - a.at) : 1);
	};
	double least = 1e300, most = 0;
	for (double a = from; a + 0.1 <= to; a += 0.007) {
		double r = (count(a + 0.1) - count(a)) * 10;
		least = std::min(least, r);
		most = std::max(most, r);
	}
	printf("{\"rate\": %.3f, \"worst\": %.3f, \"best\": %.3f}\n", (count(to) - count(from)) / (to - from), least, most);
}

/*
 * Keeps the GPU busy: calls submit(i, slot), each of about `unit_us`, three batches of about 4 ms in flight, each
 * followed by an event in `stream_of(slot)`.
 */
template <class Submit> static void saturate(double unit_us, int units_a_call, Submit submit, cudaStream_t stream)
{
	int calls = std::max(1, (int)(4000 / unit_us));
	cudaEvent_t done[3];
	for (auto &e : done)
		OK(cudaEventCreateWithFlags(&e, cudaEventBlockingSync | cudaEventDisableTiming));
	std::vector<Mark> marks;
	double start = now(), total = 0;
	for (int i = 0; now() < end_at(start); i++) {
		if (i >= 3) {
			OK(cudaEventSynchronize(done[i % 3]));
			total += (double)calls * units_a_call;
			marks.push_back({now(), total});
		}
		for (int k = 0; k < calls; k++)
			submit(i * calls + k);
		OK(cudaEventRecord(done[i % 3], stream));
	}
	OK(cudaDeviceSynchronize());
	print_rate(marks);
}

static cudaStream_t new_stream()
{
	cudaStream_t s;
	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	return s;
}

static void kernels()
{
	double us = get("us", 1000);
	cudaStream_t s = new_stream();
	saturate(us, 1, [&](int) { launch(us, s); }, s);
}

/* Each batch forks from one stream to all and joins them again, so that its event means all of them. */
static void streams()
{
	double us = get("us", 1000);
	cudaStream_t main_stream = new_stream(), all[64];
	cudaEvent_t fork, join[64];
	OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	for (int i = 0; i < 64; i++) {
		all[i] = new_stream();
		OK(cudaEventCreateWithFlags(&join[i], cudaEventDisableTiming));
	}
	saturate(us, 1,
		 [&](int i) {
			 int k = i % 64;
			 OK(cudaEventRecord(fork, main_stream));
			 OK(cudaStreamWaitEvent(all[k], fork, 0));
			 launch(us, all[k]);
			 OK(cudaEventRecord(join[k], all[k]));
			 OK(cudaStreamWaitEvent(main_stream, join[k], 0));
		 },
		 main_stream);
}

/* Runs `tenants` loops of kernels, each in a context of its own, and adds them up. */
static void in_contexts(std::vector<CUcontext> contexts, std::vector<CUstream> given, double us)
{
	struct One {
		CUcontext context;
		cudaStream_t stream;
		cudaEvent_t done[3];
		int batches;
	};
	std::vector<One> all;
	for (size_t i = 0; i < contexts.size(); i++) {
		One o = {contexts[i], nullptr, {}, 0};
		OK(cuCtxSetCurrent(o.context));
		o.stream = given.empty() ? new_stream() : (cudaStream_t)given[i];
		for (auto &e : o.done)
			OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
		all.push_back(o);
	}
	std::vector<Mark> marks;
	double start = now(), total = 0;
	int calls = std::max(1, (int)(4000 / us));
	while (now() < end_at(start)) {
		bool any = false;
		for (One &o : all) {
			OK(cuCtxSetCurrent(o.context));
			if (o.batches >= 3) {
				if (cudaEventQuery(o.done[o.batches % 3]) != cudaSuccess)
					continue;
				total += calls;
				marks.push_back({now(), total});
			}
			for (int k = 0; k < calls; k++)
				launch(us, o.stream);
			OK(cudaEventRecord(o.done[o.batches++ % 3], o.stream));
			any = true;
		}
		if (!any)
			usleep(50);
	}
	for (One &o : all) {
		OK(cuCtxSetCurrent(o.context));
		OK(cudaDeviceSynchronize());
	}
	print_rate(marks);
}

static void contexts()
{
	CUdevice device;
	OK(cuDeviceGet(&device, 0));
	std::vector<CUcontext> all((size_t)get("count", 4));
	for (CUcontext &c : all)
		OK(cuCtxCreate(&c, nullptr, 0, device));
	in_contexts(all, {}, get("us", 1000));
}

static void green()
{
	CUdevice device;
	OK(cuDeviceGet(&device, 0));
	CUdevResource whole, parts[8], rest;
	unsigned int n = 8;
	OK(cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevSmResourceSplitByCount(parts, &n, &whole, &rest, 0, 16));
	std::vector<CUcontext> all;
	std::vector<CUstream> given;
	for (unsigned int i = 0; i < n; i++) {
		CUdevResourceDesc d;
		CUgreenCtx g;
		CUcontext c;
		CUstream s;
		OK(cuDevResourceGenerateDesc(&d, &parts[i], 1));
		OK(cuGreenCtxCreate(&g, d, device, CU_GREEN_CTX_DEFAULT_STREAM));
		OK(cuCtxFromGreenCtx(&c, g));
		OK(cuGreenCtxStreamCreate(&s, g, CU_STREAM_NON_BLOCKING, 0));
		all.push_back(c);
		given.push_back(s);
	}
	blocks /= (int)n; // each has its own multiprocessors
	in_contexts(all, given, get("us", 1000));
}

static void graph()
{
	double us = get("us", 100);
	cudaStream_t s = new_stream();
	cudaGraph_t captured;
	cudaGraphExec_t exec;
	OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < 100; i++)
		launch(us, s);
	OK(cudaStreamEndCapture(s, &captured));
	OK(cudaGraphInstantiate(&exec, captured, 0));
	saturate(us * 100, 100, [&](int) { OK(cudaGraphLaunch(exec, s)); }, s);
}

/* Watches a counter in host memory while something runs by itself. */
static void watch(volatile unsigned long long *count, volatile int *stop)
{
	std::vector<Mark> marks;
	double start = now();
	while (now() < end_at(start)) {
		usleep(1000);
		marks.push_back({now(), (double)*count});
	}
	*stop = 1;
	OK(cudaDeviceSynchronize());
	print_rate(marks);
}

static void mapped(volatile unsigned long long **count, volatile int **stop)
{
	OK(cudaHostAlloc((void **)count, sizeof **count, cudaHostAllocMapped));
	OK(cudaHostAlloc((void **)stop, sizeof **stop, cudaHostAllocMapped));
	**count = 0;
	**stop = 0;
}

/* The rate is of all blocks: those of one multiprocessor may get more of it than others when they are paused. */
static void persistent()
{
	int *stop;
	unsigned int *rounds, *seen;
	size_t bytes = (size_t)blocks * sizeof *rounds;
	cudaStream_t s = new_stream(), reads = new_stream();
	std::vector<Mark> marks;
	double least = 0, most = 0;
	OK(cudaMalloc(&stop, sizeof *stop));
	OK(cudaMemset(stop, 0, sizeof *stop));
	OK(cudaMalloc(&rounds, bytes));
	OK(cudaMemset(rounds, 0, bytes));
	OK(cudaHostAlloc((void **)&seen, bytes, cudaHostAllocDefault));
	endless<<<blocks, THREADS, 0, s>>>((long)(100 * loops_per_us), rounds, stop, nullptr);
	double start = now();
	while (now() < end_at(start)) {
		usleep(2000);
		OK(cudaMemcpyAsync(seen, rounds, bytes, cudaMemcpyDeviceToHost, reads));
		OK(cudaStreamSynchronize(reads));
		double total = 0;
		for (int i = 0; i < blocks; i++)
			total += seen[i];
		marks.push_back({now(), total / blocks});
		least = *std::min_element(seen, seen + blocks);
		most = *std::max_element(seen, seen + blocks);
	}
	fprintf(stderr, "persistent: rounds of the blocks %.0f to %.0f, block 0 %u\n", least, most, seen[0]);
	seen[0] = 1;
	OK(cudaMemcpyAsync(stop, seen, sizeof *stop, cudaMemcpyHostToDevice, reads));
	OK(cudaDeviceSynchronize());
	print_rate(marks);
}

static void tail()
{
	volatile unsigned long long *count;
	volatile int *stop;
	cudaStream_t s = new_stream();
	cudaGraph_t captured;
	cudaGraphExec_t exec, *self;
	mapped(&count, &stop);
	OK(cudaMalloc(&self, sizeof *self));
	OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	launch(1000, s);
	again<<<1, 1, 0, s>>>(self, count, stop);
	OK(cudaStreamEndCapture(s, &captured));
	OK(cudaGraphInstantiate(&exec, captured, cudaGraphInstantiateFlagDeviceLaunch));
	OK(cudaMemcpy(self, &exec, sizeof exec, cudaMemcpyHostToDevice));
	OK(cudaGraphUpload(exec, s));
	OK(cudaGraphLaunch(exec, s));
	watch(count, stop);
}

static void copies()
{
	size_t bytes = (size_t)get("bytes", 256 << 20);
	char *from, *to;
	cudaStream_t s = new_stream();
	OK(cudaMalloc(&from, bytes));
	OK(cudaMalloc(&to, bytes));
	saturate(2.0 * bytes / 4.0e6, 1, [&](int) { OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s)); }, s);
}

static void memsets()
{
	size_t bytes = (size_t)1 << 30;
	char *to;
	cudaStream_t s = new_stream();
	OK(cudaMalloc(&to, bytes));
	saturate(bytes / 3.0e6, 1, [&](int) { OK(cudaMemsetAsync(to, 0, bytes, s)); }, s);
}

static void bursts()
{
	double on = get("on", 300) * 1e-3, off = get("off", 3000) * 1e-3, us = get("us", 1000), busy = 0, kernels = 0;
	cudaStream_t s = new_stream();
	cudaEvent_t done[3];
	for (auto &e : done)
		OK(cudaEventCreateWithFlags(&e, cudaEventBlockingSync | cudaEventDisableTiming));
	for (double start = now(); now() - start < seconds;) {
		usleep((useconds_t)(off * 1e6));
		double begin = now();
		for (int i = 0; now() - begin < on; i++) {
			if (i >= 3)
				OK(cudaEventSynchronize(done[i % 3]));
			for (int k = 0; k < 2000 / us; k++, kernels++)
				launch(us, s);
			OK(cudaEventRecord(done[i % 3], s));
		}
		OK(cudaStreamSynchronize(s));
		busy += now() - begin;
	}
	printf("{\"rate\": %.3f}\n", kernels / busy);
}

#include "placeholder.cuh"

static void requests()
{
	double us = get("us", 13), every = get("every", 1000) * 1e-6, pace = get("pace", 0) * 1e-6;
	const double hint = get("hint", -1) * 1e-6, hold = get("hold", 0) * 1e-6, before = std::max(hint, hold);
	const bool random = get("random", 0) > 0;
	int count = (int)get("count", 1);
	size_t copy = (size_t)get("copy", 0);
	char *host = nullptr, *device = nullptr;
	cudaStream_t s = new_stream();
	if (copy) {
		OK(cudaHostAlloc((void **)&host, copy, 0));
		OK(cudaMalloc(&device, copy));
	}
	Placeholder placeholder((int)get("behind", 0), (int)get("writes", 0));
	launch(us, s);
	OK(cudaStreamSynchronize(s));
	std::vector<double> took, begun;
	double phase = get("phase", -1) * 1e-6;
	if (phase >= 0) {
		timespec t;
		clock_gettime(CLOCK_REALTIME, &t);
		double wait = phase - fmod(t.tv_nsec * 1e-9, 0.05);
		usleep((useconds_t)((wait < 0 ? wait + 0.05 : wait) * 1e6));
	}
	double start = now(), next = start, from = std::max(start + warm, begin_at), to = from + seconds;
	while (now() < to) {
		const double hinted = before > 0 ? next - before : next;
		while (now() < hinted)
			usleep(hinted - now() > 200e-6 ? 50 : 0);
		double begin = now();
		if (hint >= 0)
			hami_hint_soon();
		if (hold > 0)
			placeholder.begin();
		if (before > 0) {
			while (now() < next)
				;
			begin = now();
		}
		if (hint >= 0)
			hami_hint_begin(0);
		const double gap = random ? -every * std::log(1 - drand48()) : every;
		next = std::max(next + gap, begin); // a late request is not made up for
		if (copy)
			OK(cudaMemcpyAsync(device, host, copy, cudaMemcpyHostToDevice, s));
		for (int i = 0; i < count; i++) {
			for (double at = begin + i * pace; now() < at;)
				;
			launch(us, s);
		}
		if (hold > 0)
			placeholder.end();
		OK(cudaStreamSynchronize(s));
		double end = now();
		if (hint >= 0)
			hami_hint_end();
		if (begin >= from) {
			took.push_back((end - begin) * 1e6);
			begun.push_back(begin);
		}
	}
	timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	const double ahead = t.tv_sec + t.tv_nsec * 1e-9 - now();
	for (size_t i = 0; get("list", 0) > 0 && i < took.size(); i++)
		fprintf(stderr, "%.0f %.1f\n", (begun[i] + ahead) * 1e6, took[i]);
	print_requests(took, took.size() / (now() - from));
}

static void steps()
{
	double us = get("us", 1000), gap = get("gap", 1500) * 1e-6;
	cudaStream_t s = new_stream();
	std::vector<Mark> marks;
	double start = now(), total = 0;
	while (now() < end_at(start)) {
		launch(us, s);
		OK(cudaStreamSynchronize(s));
		marks.push_back({now(), ++total});
		for (double end = marks.back().at + gap; now() < end;)
			;
	}
	print_rate(marks);
}

static void transfers()
{
	size_t bytes = (size_t)get("bytes", 64 << 20);
	int in = (int)get("in", 1), out = (int)get("out", 1);
	char *host[2], *device[2];
	cudaStream_t s[2] = {new_stream(), new_stream()};
	for (int i = 0; i < 2; i++) {
		OK(cudaHostAlloc((void **)&host[i], bytes, 0));
		OK(cudaMalloc(&device[i], bytes));
	}
	std::vector<Mark> marks;
	double start = now(), total = 0;
	cudaEvent_t done[2][3];
	for (auto &events : done)
		for (auto &e : events)
			OK(cudaEventCreateWithFlags(&e, cudaEventBlockingSync | cudaEventDisableTiming));
	for (int n = 0; now() < end_at(start); n++) {
		for (int i = 0; i < 2; i++) { // 0: in, 1: out
			if (!(i ? out : in))
				continue;
			if (n >= 3)
				OK(cudaEventSynchronize(done[i][n % 3]));
			OK(cudaMemcpyAsync(i ? host[i] : device[i], i ? device[i] : host[i], bytes, cudaMemcpyDefault, s[i]));
			OK(cudaEventRecord(done[i][n % 3], s[i]));
		}
		marks.push_back({now(), ++total});
	}
	print_rate(marks);
}

static void memory()
{
	cudaStream_t s = new_stream();
	std::vector<Mark> marks;
	double start = now(), total = 0;
	while (now() < end_at(start)) {
		char *some;
		OK(cudaMalloc(&some, 256 << 20));
		launch(get("us", 100), s);
		OK(cudaFree(some));
		marks.push_back({now(), ++total});
	}
	print_rate(marks);
}

static void making()
{
	std::vector<Mark> marks;
	double start = now(), total = 0;
	CUdevice device;
	OK(cuDeviceGet(&device, 0));
	while (now() < end_at(start)) {
		CUcontext context;
		OK(cuCtxCreate(&context, nullptr, 0, device));
		launch(get("us", 100), nullptr);
		OK(cuCtxSynchronize());
		OK(cuCtxDestroy(context));
		marks.push_back({now(), ++total});
	}
	print_rate(marks);
}

static void starting()
{
	std::vector<Mark> marks;
	double start = now(), total = 0;
	std::string loops = std::to_string(loops_per_us);
	while (now() < end_at(start)) {
		pid_t child = fork();
		if (!child) {
			execl("/proc/self/exe", "work", "once", "1", loops.c_str(), "count=1", (char *)nullptr);
			_exit(127);
		}
		int status;
		OK(waitpid(child, &status, 0) != child || status);
		marks.push_back({now(), ++total});
	}
	print_rate(marks);
}

static int calibrate()
{
	cudaEvent_t a, b;
	float ms;
	OK(cudaEventCreate(&a));
	OK(cudaEventCreate(&b));
	long loops = 300000;
	for (int i = 0; i < 200; i++) // clocks up
		work<<<blocks, THREADS>>>(loops, nullptr);
	OK(cudaEventRecord(a));
	for (int i = 0; i < 100; i++)
		work<<<blocks, THREADS>>>(loops, nullptr);
	OK(cudaEventRecord(b));
	OK(cudaEventSynchronize(b));
	OK(cudaEventElapsedTime(&ms, a, b));
	printf("{\"loops_per_us\": %.4f}\n", loops / (ms * 1e3 / 100));
	return 0;
}

static void once()
{
	cudaStream_t s = new_stream();
	for (int i = 0; i < (int)get("count", 20); i++)
		launch(get("us", 1000), s);
	OK(cudaStreamSynchronize(s));
	if (get("end", 0) > 1)
		raise(SIGKILL);
	if (get("end", 0) > 0)
		_exit(0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)();
	} kinds[] = {{"kernels", kernels}, {"streams", streams},   {"contexts", contexts}, {"green", green},
		     {"graph", graph},     {"tail", tail},         {"persistent", persistent}, {"copies", copies},
		     {"memsets", memsets}, {"bursts", bursts},     {"requests", requests}, {"steps", steps},
		     {"once", once}, {"transfers", transfers}, {"memory", memory}, {"making", making},
		     {"starting", starting}};
	cudaDeviceProp p;
	OK(cudaGetDeviceProperties(&p, 0));
	blocks = p.multiProcessorCount * (p.maxThreadsPerMultiProcessor / THREADS);
	OK(cudaFree(nullptr));
	if (argc == 2 && !strcmp(argv[1], "calibrate"))
		return calibrate();
	if (argc >= 4) {
		seconds = atof(argv[2]);
		loops_per_us = atof(argv[3]);
		option = argv + 4;
		options = argc - 4;
		warm = get("warm", warm);
		if (get("begin", 0) > 0) {
			timespec t;
			clock_gettime(CLOCK_REALTIME, &t);
			begin_at = now() + get("begin", 0) - (t.tv_sec + t.tv_nsec * 1e-9);
		}
		for (auto &kind : kinds)
			if (!strcmp(argv[1], kind.name)) {
				kind.run();
				return 0;
			}
	}
	fprintf(stderr, "usage: work calibrate | work KIND SECONDS LOOPS [NAME=VALUE ...]; the kinds: see work.cu\n");
	return 2;
}
