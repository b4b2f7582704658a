// SPDX-License-Identifier: Apache-2.0
/*
 * Shows what a CUDA program sees of the GPU it was given: total and free memory, then its own allocations up
 * to the limit and CUDA's own error beyond it. It uses the driver API only and knows nothing of hami_hpc.
 *
 *   slice                    fills the GPU (or the slice of it) and says where the limit was
 *   slice --use MIB          allocates that much and stops
 *   slice --hold SECONDS     keeps the memory that long before it ends; may follow --use
 *   slice --until FILE       keeps it until FILE exists, at most 5 minutes or what --hold says
 *
 * Exit status: 0 as described; 1 a CUDA call failed that should not, or the limit was not where cuMemGetInfo
 * said; 2 usage; 3 --use asked for more than there is.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BLOCK (2048 * MIB)
#define STATUS_USAGE 2
#define STATUS_TOO_MUCH 3

struct options {
	size_t use_mib; // 0: fill
	long hold_s;
	const char *until;
};

struct memory {
	size_t free, total;
};

static const char *error_name(CUresult result)
{
	const char *name = NULL;
	return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "unknown CUDA error";
}

static const char *error_text(CUresult result)
{
	const char *text = NULL;
	return cuGetErrorString(result, &text) == CUDA_SUCCESS && text ? text : "no description";
}

static void check(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "slice: %s: %s (%s)\n", what, error_name(result), error_text(result));
	exit(EXIT_FAILURE);
}

static struct memory memory_now(void)
{
	struct memory now;
	check(cuMemGetInfo(&now.free, &now.total), "cuMemGetInfo");
	return now;
}

// One allocation, reported on a line of its own. It is left to the end of the process to free it.
static CUresult allocate(size_t bytes)
{
	CUdeviceptr pointer;
	CUresult result = cuMemAlloc(&pointer, bytes);
	struct memory now = memory_now();

	printf("  cuMemAlloc %5zu MiB   %-28s %6zu of %zu MiB in use\n", bytes / MIB,
	       result == CUDA_SUCCESS ? "ok" : error_name(result), (now.total - now.free) / MIB,
	       now.total / MIB);
	return result;
}

// Allocates whole blocks, then all that is left, then 1 MiB more, which has to fail.
static int fill(void)
{
	struct memory now = memory_now();
	CUresult result = CUDA_SUCCESS;

	while (result == CUDA_SUCCESS && now.free >= BLOCK) {
		result = allocate(BLOCK);
		now = memory_now();
	}
	if (result == CUDA_SUCCESS && now.free / MIB > 0)
		result = allocate(now.free / MIB * MIB);
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "slice: an allocation failed although cuMemGetInfo said that it fits\n");
		return EXIT_FAILURE;
	}
	result = allocate(MIB);
	if (result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "slice: 1 MiB past the limit: %s instead of CUDA_ERROR_OUT_OF_MEMORY\n",
			error_name(result));
		return EXIT_FAILURE;
	}
	printf("  CUDA says: %s\n", error_text(result));
	return EXIT_SUCCESS;
}

static void hold(long seconds, const char *until)
{
	const struct timespec poll = {.tv_nsec = 50 * 1000 * 1000};
	struct timespec now, end;

	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += seconds;
	do {
		nanosleep(&poll, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end.tv_sec && !(until && access(until, F_OK) == 0));
}

static void usage(void)
{
	fprintf(stderr, "usage: slice [--use MIB] [--hold SECONDS] [--until FILE]\n");
	exit(STATUS_USAGE);
}

static long number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);
	if (value < 0 || end == text || *end != '\0')
		usage();
	return value;
}

static struct options parse(int argc, char **argv)
{
	struct options options = {0};

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc)
			usage();
		if (strcmp(argv[i], "--use") == 0) {
			options.use_mib = (size_t)number(argv[i + 1]);
		} else if (strcmp(argv[i], "--hold") == 0) {
			options.hold_s = number(argv[i + 1]);
		} else if (strcmp(argv[i], "--until") == 0) {
			options.until = argv[i + 1];
			options.hold_s = options.hold_s > 0 ? options.hold_s : 300;
		} else {
			usage();
		}
	}
	return options;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	CUdevice device;
	CUcontext context;
	char name[128];
	size_t total;
	int status = EXIT_SUCCESS;

	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDeviceGetName(name, (int)sizeof(name), device), "cuDeviceGetName");
	check(cuDeviceTotalMem(&total, device), "cuDeviceTotalMem");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	struct memory now = memory_now();
	printf("%s: %zu MiB in total, %zu MiB free, %zu MiB taken by this CUDA context\n", name, total / MIB,
	       now.free / MIB, (now.total - now.free) / MIB);
	if (options.use_mib == 0)
		status = fill();
	else if (allocate(options.use_mib * MIB) != CUDA_SUCCESS)
		status = STATUS_TOO_MUCH;
	if (status == EXIT_SUCCESS && options.hold_s > 0)
		hold(options.hold_s, options.until);
	return status;
}
