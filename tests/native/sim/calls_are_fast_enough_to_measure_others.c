/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what the calls cost, best of several batches: some hundred ns, so that an interposer's own cost can be
 * measured beside them (make bench-interposer). The limit is that of a call gone wrong, on a busy machine too.
 */
#include "check.h"

#include <sched.h>

enum { BATCHES = 30, CALLS = 2000, LIMIT_NS = 200000 };

static CUfunction function;

static void alloc_small(void)
{
	CUdeviceptr p;
	OK(cuMemAlloc(&p, 1000));
	OK(cuMemFree(p));
}

static void alloc_large(void)
{
	CUdeviceptr p;
	OK(cuMemAlloc(&p, 64 * MIB));
	OK(cuMemFree(p));
}

static void launch(void)
{
	spin(function, NULL, 1);
}

static void query(void)
{
	OK(cuStreamQuery(NULL));
}

static void measure(const char *name, void (*call)(void))
{
	uint64_t best = UINT64_MAX;
	for (int b = 0; b < BATCHES; b++) {
		uint64_t start = now_ns();
		for (int i = 0; i < CALLS; i++)
			call();
		uint64_t each = (now_ns() - start) / CALLS;
		best = each < best ? each : best;
		OK(cuCtxSynchronize());
		sched_yield();
	}
	printf("%s: %llu ns\n", name, (unsigned long long)best);
	CHECK(best < LIMIT_NS);
}

int main(void)
{
	CUdeviceptr keep;
	make_machine("h200");
	open_device();
	OK(cuMemAlloc(&keep, 1000));
	function = spin_function();
	measure("cuMemAlloc and cuMemFree of 1000 bytes", alloc_small);
	measure("cuMemAlloc and cuMemFree of 64 MiB", alloc_large);
	measure("cuLaunchKernel", launch);
	measure("cuStreamQuery", query);
	return 0;
}
