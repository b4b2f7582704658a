/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the programs that take more of a GPU than their job has: each is called with
 *
 *	MIB SECONDS [PERCENT]
 *
 * takes so much GPU memory, says so in one line, and keeps the GPU busy for PERCENT (default 100) of the time until
 * SECONDS are over. They run on the simulation, which looks at the kernel's name only, and on a GPU (tests/gpu), which
 * runs its PTX. A program that cannot have its memory exits with 1.
 */
#ifndef EVADER_H
#define EVADER_H
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);              \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

#define OK(call) CHECK((call) == CUDA_SUCCESS)

/* The driver's functions that these programs call, however they got them. */
#define DRIVER_FUNCTIONS(X)                                                                                  \
	X(cuInit)                                                                                            \
	X(cuDevicePrimaryCtxRetain)                                                                          \
	X(cuCtxSetCurrent)                                                                                   \
	X(cuCtxSynchronize)                                                                                  \
	X(cuMemAlloc_v2)                                                                                     \
	X(cuModuleLoadData)                                                                                  \
	X(cuModuleGetFunction)                                                                               \
	X(cuLaunchKernel)

#define DRIVER_FIELD(name) __typeof__(&name) name;
struct driver {
	DRIVER_FUNCTIONS(DRIVER_FIELD)
};

/* As the program was linked. */
#define DRIVER_LINKED(name) .name = name,
#define LINKED_DRIVER ((struct driver){DRIVER_FUNCTIONS(DRIVER_LINKED)})

typedef void *lookup_fn(void *handle, const char *name);

/* As `lookup` finds them in a library. */
#define DRIVER_LOOKUP(name) CHECK((d.name = (__typeof__(d.name))lookup(handle, #name)) != NULL);
static inline struct driver driver_of(lookup_fn *lookup, void *handle)
{
	struct driver d;
	CHECK(handle != NULL);
	DRIVER_FUNCTIONS(DRIVER_LOOKUP)
	return d;
}

/* libc's dlsym, whatever other library has one: libc's has a version. */
static inline lookup_fn *libc_dlsym(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY);
	lookup_fn *found = (lookup_fn *)dlvsym(libc, "dlsym", "GLIBC_2.34");
	if (!found)
		found = (lookup_fn *)dlvsym(libc, "dlsym", "GLIBC_2.2.5");
	CHECK(found != NULL);
	return found;
}

static inline double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A kernel of one thread that takes as many nanoseconds as its argument says. */
static const char SPIN_PTX[] = ".version 7.0\n"
			       ".target sm_70\n"
			       ".address_size 64\n"
			       ".visible .entry sim_spin_ns(.param .u64 ns)\n"
			       "{\n"
			       "	.reg .u64 %r<4>;\n"
			       "	.reg .pred %p;\n"
			       "	ld.param.u64 %r1, [ns];\n"
			       "	mov.u64 %r2, %globaltimer;\n"
			       "	add.u64 %r1, %r1, %r2;\n"
			       "again:\n"
			       "	mov.u64 %r2, %globaltimer;\n"
			       "	setp.lt.u64 %p, %r2, %r1;\n"
			       "	@%p bra again;\n"
			       "	ret;\n"
			       "}\n";

/* A context, and that kernel. */
static inline CUfunction start(const struct driver *d)
{
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	OK(d->cuInit(0));
	OK(d->cuDevicePrimaryCtxRetain(&context, 0));
	OK(d->cuCtxSetCurrent(context));
	OK(d->cuModuleLoadData(&module, SPIN_PTX));
	OK(d->cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	return kernel;
}

/* Keeps the GPU busy for `percent` of a time, in periods of 50 ms at most. */
static inline void spin(const struct driver *d, CUfunction kernel, double seconds, int percent)
{
	const double period_s = seconds < 0.05 ? seconds : 0.05;
	uint64_t ns = (uint64_t)(period_s * 1e7 * percent);
	void *params[] = {&ns};
	for (double next = now_s(), end = next + seconds; next < end;) {
		OK(d->cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(d->cuCtxSynchronize());
		next += period_s;
		double left = next - now_s();
		if (left > 0)
			usleep((useconds_t)(left * 1e6));
		else
			next -= left;
	}
}

static inline size_t mib_of(int argc, char **argv)
{
	CHECK(argc >= 3);
	return strtoull(argv[1], NULL, 10);
}

static inline double seconds_of(int argc, char **argv)
{
	CHECK(argc >= 3);
	return atof(argv[2]);
}

static inline int percent_of(int argc, char **argv)
{
	return argc > 3 ? atoi(argv[3]) : 100;
}

static inline void say(size_t mib)
{
	printf("holds %zu MiB, outside of the interposer\n", mib);
	fflush(stdout);
}

/* All of an evader whose way is only in how it got the functions. */
static inline int evade(const struct driver *d, int argc, char **argv)
{
	CUdeviceptr address;
	CUfunction kernel = start(d);
	OK(d->cuMemAlloc_v2(&address, mib_of(argc, argv) * MIB));
	say(mib_of(argc, argv));
	spin(d, kernel, seconds_of(argc, argv), percent_of(argc, argv));
	return 0;
}
#endif
