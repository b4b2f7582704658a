// SPDX-License-Identifier: Apache-2.0
/*
 * Work that must not notice that it is paused: the same results, to the bit, as natively. One line of JSON.
 *
 *   paused list                                     the cases' names, a line each
 *   paused NAME SEED [seconds=1.5] [rounds=N]       {"case": ..., "rounds": ..., "seconds": ..., "hash": ...}
 *
 * A case does rounds of some 10 ms of GPU work with inputs that follow from SEED and the round's number, compares each
 * round's results with a reference of its own, and ends after `rounds`, or when they took `seconds`. The hash is of all
 * rounds' results: run a case natively, and again with as many rounds under a cap. Exit status 1: an error or a wrong
 * result, told on stderr. For compute capability 9.0:
 *
 *   nvcc -O2 -std=c++17 -rdc=true -gencode arch=compute_90a,code=sm_90a paused.cu -o paused -lcuda -lcudadevrt
 */
#include "paused_blocks.cuh"
#include "paused_engines.cuh"
#include "paused_graphs.cuh"
#include "paused_streams.cuh"

static const struct {
	const char *name;
	void (*run)(Run &run);
} cases[] = {
	{"tensor", tensor},           // tensor cores, a warp at a time (mma)
	{"wgmma", wgmma},             // tensor cores, a warpgroup at a time, asynchronous, from shared memory
	{"cp_async", cp_async},       // asynchronous copies to shared memory
	{"tma", tma},                 // the tensor memory accelerator: boxes of a matrix, and plain bytes
	{"grid_sync", grid_sync},     // a cooperative grid that waits for all its blocks
	{"cluster", cluster},         // clusters: distributed shared memory and their barrier
	{"look_back", look_back},     // blocks that wait for each other by atomics and fences
	{"conditional", conditional}, // graphs with IF and WHILE nodes
	{"tail_launch", tail_launch}, // a graph that launches itself on the device
	{"copies", copies},       // copies between host and device, and within it, in streams beside kernels
	{"callbacks", callbacks}, // host functions in streams
	{"ordered", ordered},     // memory allocated and freed in stream order
	{"events", events},       // events, and streams that wait for each other
	{"captures", captures},   // captures of graphs while other threads' streams run
};

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (auto &c : cases)
			puts(c.name);
		return 0;
	}
	if (argc < 3) {
		fprintf(stderr, "usage: paused list | paused NAME SEED [seconds=1.5] [rounds=N]\n");
		return 2;
	}
	double seconds = 1.5;
	u64 rounds = 0;
	for (int i = 3; i < argc; i++) {
		if (!strncmp(argv[i], "seconds=", 8))
			seconds = atof(argv[i] + 8);
		else if (!strncmp(argv[i], "rounds=", 7))
			rounds = strtoull(argv[i] + 7, nullptr, 10);
		else
			fail("%s: seconds=S or rounds=N", argv[i]);
	}
	for (auto &c : cases) {
		if (strcmp(c.name, argv[1]))
			continue;
		Run run(strtoull(argv[2], nullptr, 10), seconds, rounds);
		c.run(run);
		printf("{\"case\": \"%s\", \"rounds\": %lu, \"seconds\": %.3f, \"hash\": \"%016lx\"}\n",
		       c.name, run.round, run.gpu_seconds(), run.hash);
		return 0;
	}
	fail("%s: no such case; `paused list` prints them", argv[1]);
}
