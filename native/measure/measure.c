/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hami-hpc-measure LOOPS: one tenant of `hami-hpc baseline`, on the first GPU that it sees. Prints a line for
 * each figure, waits for a line, works, and ends:
 *
 *	context_ns N    from cuInit until there is a context
 *	launch_ns N     a kernel that does nothing, launched and waited for: the fastest tenth of LAUNCHES, since
 *	                other programs on the processor only make it longer
 *	ready           then reads "go START_NS LENGTH_NS" (CLOCK_MONOTONIC)
 *	kernels N       kernels of LOOPS loops that ended within that time, launched one behind the other
 *
 * The kernel is PTX, which the driver compiles. It counts operations and not time: a kernel that is paused or
 * preempted does no less. The process ends with its parent, and after ALARM_S at the latest.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { LAUNCHES = 200, IN_FLIGHT = 8, THREADS = 256, ALARM_S = 60, NICE = -10 };

#define KERNEL "hami_hpc_work"

/* Each thread multiplies and adds, each time with the result of the time before; eight times a loop. */
static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  ".visible .entry " KERNEL "(.param .u64 loops, .param .u64 out)\n"
			  "{\n"
			  "	.reg .pred %more;\n"
			  "	.reg .f32 %x, %a, %b;\n"
			  "	.reg .u64 %left, %to;\n"
			  "	ld.param.u64 %left, [loops];\n"
			  "	ld.param.u64 %to, [out];\n"
			  "	cvta.to.global.u64 %to, %to;\n"
			  "	mov.f32 %x, 0f3F800000;\n"
			  "	mov.f32 %a, 0f3F7FFFFF;\n"
			  "	mov.f32 %b, 0f33D6BF95;\n"
			  "again:\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	fma.rn.f32 %x, %x, %a, %b;\n"
			  "	sub.u64 %left, %left, 1;\n"
			  "	setp.ne.u64 %more, %left, 0;\n"
			  "	@%more bra again;\n"
			  "	st.global.f32 [%to], %x;\n"
			  "	ret;\n"
			  "}\n";

/* The driver's functions, by the names of this header's version of them. */
#define FUNCTIONS(F)                                                                                         \
	F(cuInit)                                                                                            \
	F(cuDeviceGet)                                                                                       \
	F(cuDeviceGetAttribute)                                                                              \
	F(cuDevicePrimaryCtxRetain)                                                                          \
	F(cuCtxSetCurrent)                                                                                   \
	F(cuModuleLoadData)                                                                                  \
	F(cuModuleGetFunction)                                                                               \
	F(cuMemAlloc)                                                                                        \
	F(cuLaunchKernel)                                                                                    \
	F(cuCtxSynchronize)                                                                                  \
	F(cuEventCreate)                                                                                     \
	F(cuEventRecord)                                                                                     \
	F(cuEventSynchronize)

#define POINTER(name) __typeof__(&name) name##_;
static struct {
	FUNCTIONS(POINTER)
} cuda;

__attribute__((noreturn)) static void fail(const char *what, int code)
{
	fprintf(stderr, "hami-hpc-measure: %s failed (CUDA error %d)\n", what, code);
	exit(1);
}

#define TEXT(name) #name
#define NAME_OF(name) TEXT(name) /* cuda.h's own macros give the present version */
#define OK(name, ...)                                                                                        \
	do {                                                                                                 \
		CUresult result_ = cuda.name##_(__VA_ARGS__);                                                \
		if (result_ != CUDA_SUCCESS)                                                                 \
			fail(#name, (int)result_);                                                           \
	} while (0)

static void find_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "hami-hpc-measure: %s\n", dlerror());
		exit(1);
	}
	bool complete = true;
#define FIND(name)                                                                                           \
	{                                                                                                    \
		void *found = dlsym(library, NAME_OF(name));                                                 \
		memcpy(&cuda.name##_, &found, sizeof found);                                                 \
		complete = complete && found;                                                                \
	}
	FUNCTIONS(FIND)
	if (!complete) {
		fprintf(stderr, "hami-hpc-measure: libcuda.so.1 lacks a function that it needs\n");
		exit(1);
	}
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static struct {
	CUfunction kernel;
	CUdeviceptr out;
	unsigned int blocks;
} work;

static void launch(uint64_t loops)
{
	void *parameters[] = {&loops, &work.out};
	OK(cuLaunchKernel, work.kernel, work.blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
}

static void begin(void)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;
	int processors;
	int64_t begun = now_ns();
	OK(cuInit, 0);
	OK(cuDeviceGet, &device, 0);
	OK(cuDevicePrimaryCtxRetain, &context, device);
	OK(cuCtxSetCurrent, context);
	printf("context_ns %" PRId64 "\n", now_ns() - begun);
	OK(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	OK(cuModuleLoadData, &module, ptx);
	OK(cuModuleGetFunction, &work.kernel, module, KERNEL);
	OK(cuMemAlloc, &work.out, sizeof(float));
	work.blocks = (unsigned int)processors;
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int64_t launch_cost(void)
{
	int64_t took[LAUNCHES];
	for (int i = -LAUNCHES / 10; i < LAUNCHES; i++) { /* the first ones are not counted */
		int64_t begun = now_ns();
		launch(1);
		OK(cuCtxSynchronize);
		if (i >= 0)
			took[i] = now_ns() - begun;
	}
	qsort(took, LAUNCHES, sizeof *took, compare);
	return took[LAUNCHES / 10];
}

static uint64_t kernels_within(uint64_t loops, int64_t start, int64_t end)
{
	CUevent ended[IN_FLIGHT];
	uint64_t counted = 0;
	for (int i = 0; i < IN_FLIGHT; i++)
		OK(cuEventCreate, &ended[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	for (uint64_t i = 0;; i++) {
		CUevent event = ended[i % IN_FLIGHT];
		if (i >= IN_FLIGHT) {
			OK(cuEventSynchronize, event);
			int64_t now = now_ns();
			if (now >= end)
				return counted;
			counted += now >= start;
		}
		launch(loops);
		OK(cuEventRecord, event, NULL);
	}
}

int main(int argc, char **argv)
{
	char *rest;
	int64_t start, length;
	uint64_t loops = argc == 2 ? strtoull(argv[1], &rest, 10) : 0;
	if (!loops || *rest) {
		fprintf(stderr, "usage: hami-hpc-measure LOOPS   (started by hami-hpc baseline)\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(ALARM_S);
	setpriority(PRIO_PROCESS, 0, NICE); /* it is the GPU that is measured; where this is refused, go on */
	setvbuf(stdout, NULL, _IOLBF, 0);
	find_driver();
	begin();
	printf("launch_ns %" PRId64 "\nready\n", launch_cost());
	if (scanf("go %" SCNd64 " %" SCNd64, &start, &length) != 2)
		return 0; /* the other figures were all that was wanted */
	printf("kernels %" PRIu64 "\n", kernels_within(loops, start, start + length));
	return 0;
}
