/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies_have_timeslices MS
 *
 * Works for MS milliseconds, a kernel of 1 ms and then a copy, and prints a line each time when the timeslices of its groups
 * that copy have changed: "LEAST MOST" in microseconds. In the middle it makes a second context. The groups are learnt by
 * an ioctl() of its own, in front of all others'.
 */
#include "../../../native/include/rm_abi.h"
#include "../interposer/check.h"
#include <dlfcn.h>
#include <stdarg.h>

#define GROUPS 64

static struct {
	int fd;
	uint32_t client, object;
} groups[GROUPS];
static _Atomic int group_count;

static int next_ioctl(int fd, unsigned long request, void *argument)
{
	int (*next)(int, unsigned long, ...);
	*(void **)&next = dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, argument);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	int rc = next_ioctl(fd, request, argument);
	const struct rm_alloc *made = argument;
	if (rc || request != RM_REQUEST(RM_NR_ALLOC, struct rm_alloc) || made->class_id != RM_CLASS_GROUP ||
	    made->status)
		return rc;
	const struct rm_group *group = (const void *)(uintptr_t)made->params;
	if (group && group->engine >= RM_ENGINE_COPY && group_count < GROUPS) {
		groups[group_count].fd = fd;
		groups[group_count].client = made->client;
		groups[group_count++].object = made->object;
	}
	return rc;
}

static void print_changes(void)
{
	static uint64_t last_least, last_most;
	uint64_t least = UINT64_MAX, most = 0;
	for (int i = 0; i < group_count; i++) {
		uint64_t us = 0;
		struct rm_control c = {.client = groups[i].client,
				       .object = groups[i].object,
				       .command = RM_GROUP_GET_TIMESLICE,
				       .params = (uint64_t)(uintptr_t)&us,
				       .size = sizeof us};
		CHECK(!next_ioctl(groups[i].fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c));
		us = c.status ? 0 : us;
		least = us < least ? us : least;
		most = us > most ? us : most;
	}
	if (least != last_least || most != last_most)
		printf("%llu %llu\n", (unsigned long long)least, (unsigned long long)most);
	fflush(stdout);
	last_least = least;
	last_most = most;
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	CUdeviceptr memory;
	CUcontext first, second = NULL;
	uint64_t ns = 1000000;
	void *of_kernel[] = {&ns};
	char bytes[4096] = {0};
	CHECK(argc == 2);
	start();
	OK(cuCtxGetCurrent(&first));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuMemAlloc(&memory, sizeof bytes));
	for (double begin = now_ms(); now_ms() < begin + atof(argv[1]);) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, of_kernel, NULL));
		OK(cuMemcpyHtoD(memory, bytes, sizeof bytes));
		OK(cuCtxSynchronize());
		print_changes();
		if (!second && now_ms() > begin + atof(argv[1]) / 2) {
			OK(cuCtxCreate(&second, NULL, 0, 0));
			OK(cuCtxSetCurrent(first));
		}
	}
	CHECK(group_count > 0);
	return 0;
}
