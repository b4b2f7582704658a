/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interposer_calls WHAT BATCHES CALLS [LIVE]
 *
 * Does BATCHES times CALLS calls and prints the ns of one call in the best batch; best, since what else the
 * machine does only ever adds. WHAT is launch (of a kernel that takes no time), start (cuInit and a context,
 * once), or alloc:BYTES (cuMemAlloc and cuMemFree), beside LIVE other allocations of that size.
 */
#include <string.h>
#include <time.h>

#include "../tests/native/interposer/check.h"

static CUfunction kernel;
static size_t bytes;

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void launch(void)
{
	uint64_t ns = 1;
	void *params[] = {&ns};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

static void alloc_and_free(void)
{
	CUdeviceptr address;
	OK(cuMemAlloc(&address, bytes));
	OK(cuMemFree(address));
}

static double best(void (*call)(void), long batches, long calls)
{
	double least = 1e18;
	for (long b = 0; b < batches; b++) {
		double begin = now_ns();
		for (long i = 0; i < calls; i++)
			call();
		double each = (now_ns() - begin) / (double)calls;
		least = each < least ? each : least;
		OK(cuCtxSynchronize());
	}
	return least;
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUdeviceptr keep;
	CHECK(argc >= 2);
	double begin = now_ns();
	start();
	if (!strcmp(argv[1], "start")) {
		printf("%.1f\n", now_ns() - begin);
		return 0;
	}
	CHECK(argc >= 4);
	long batches = atol(argv[2]), calls = atol(argv[3]), live = argc > 4 ? atol(argv[4]) : 0;
	if (!strcmp(argv[1], "launch")) {
		OK(cuModuleLoadData(&module, "image"));
		OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
		printf("%.1f\n", best(launch, batches, calls));
		return 0;
	}
	CHECK(sscanf(argv[1], "alloc:%zu", &bytes) == 1);
	for (long i = 0; i < live; i++)
		OK(cuMemAlloc(&keep, bytes));
	printf("%.1f\n", best(alloc_and_free, batches, calls));
	return 0;
}
