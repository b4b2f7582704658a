/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child has none of its parent's memory on any GPU, takes its own, and shares the limits with it. */
#include <sys/wait.h>

#include "several.h"

static void in_child(void)
{
	CUdeviceptr a;
	size_t left[MOST_DEVICES];
	open_all();
	for (int i = 0; i < device_count; i++) {
		left[i] = free_on(i);
		CHECK(left[i] <= limits[i] - 256 * MIB); /* the parent's is still charged */
	}
	OK(cuCtxSetCurrent(contexts[1]));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, limits[1] - 256 * MIB));
	OK(cuMemAlloc(&a, 64 * MIB));
	CHECK(free_on(1) == left[1] - 64 * MIB && free_on(0) == left[0]);
	_exit(0);
}

int main(void)
{
	CUdeviceptr a;
	int status;
	open_all();
	for (int i = 0; i < device_count; i++) {
		OK(cuCtxSetCurrent(contexts[i]));
		OK(cuMemAlloc(&a, 256 * MIB));
		spin(20, 1000);
	}
	size_t first = free_on(0), second = free_on(1);
	pid_t child = fork();
	if (!child)
		in_child();
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	OK(cuMemAlloc(
		&a,
		64 * MIB)); /* looks for the dead where it does not fit; else sees them at the next look */
	CHECK(free_on(0) == first && free_on(1) == second - 64 * MIB);
	return 0;
}
