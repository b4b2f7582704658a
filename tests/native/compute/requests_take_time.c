/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests_take_time COUNT KERNEL_US GAP_US HOW
 *
 * Serves COUNT requests, each of three kernels that together run for KERNEL_US, with GAP_US between two. HOW:
 * "wait": the host waits for the stream; "poll": it asks for an event; "leave": it sleeps and asks nobody;
 * "capture": as wait, after a capture; "early": as wait, from the first moment; "list": as wait, and prints when each
 * began and ended, ns of CLOCK_MONOTONIC. Prints the CPU time that the process took, us for each request.
 */
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "../interposer/check.h"

static double cpu_us(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void capture(CUfunction kernel, CUstream stream, void **params)
{
	CUgraph graph;
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
	usleep(2000);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphDestroy(graph));
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	CUstream stream;
	CUevent done;
	CHECK(argc == 5);
	useconds_t us = (useconds_t)atoi(argv[2]), gap = (useconds_t)atoi(argv[3]);
	uint64_t ns = us * 1000ull / 3;
	void *params[] = {&ns};
	const char *how = argv[4];
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
	if (strcmp(how, "early"))
		usleep(20000); /* the threads beside are there */
	if (!strcmp(how, "capture"))
		capture(kernel, stream, params);
	double before = cpu_us();
	int count = atoi(argv[1]);
	for (int i = 0; i < count; i++) {
		long long begun = now_ns();
		for (int k = 0; k < 3; k++)
			OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
		OK(cuEventRecord(done, stream));
		if (!strcmp(how, "leave"))
			usleep(us);
		else if (!strcmp(how, "poll"))
			while (cuEventQuery(done) == CUDA_ERROR_NOT_READY)
				usleep(20);
		else
			OK(cuStreamSynchronize(stream));
		if (!strcmp(how, "list"))
			printf("%lld %lld\n", begun, now_ns());
		usleep(gap);
	}
	printf("%.1f\n", (cpu_us() - before) / count);
	return 0;
}
