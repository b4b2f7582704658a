/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void child(void *argument)
{
	CUdeviceptr p;
	CUcontext current;
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 1));
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&current));
	OK(cuInit(0));
	OK(cuCtxGetCurrent(&current));
	CHECK(!current);
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 1));
	OK(cuCtxCreate(&current, NULL, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(*(CUdeviceptr *)argument)); /* the parent's */
	OK(cuMemAlloc(&p, 100 * MIB));
	CHECK(state_number("used_bytes") == (long long)(2 * 512 * MIB + 150 * MIB));
}

static void stay(void *running)
{
	*(volatile int *)running = 1; /* by now it has let go of what it inherited */
	sleep(60);
}

int main(void)
{
	CUdeviceptr p;
	make_machine("h200");
	open_device();
	OK(cuMemAlloc(&p, 50 * MIB));
	CHECK(child_status(start_child(child, &p)) == 0);
	CHECK(state_number("used_bytes") == (long long)(562 * MIB));
	/* A child that never calls cuInit must not keep its dead parent's memory. */
	volatile int *grandchild = shared_memory(2 * sizeof *grandchild);
	pid_t parent = fork();
	if (parent == 0) {
		open_device();
		OK(cuMemAlloc(&p, 1000 * MIB));
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pid_t pid = fork();
		if (pid == 0) {
			stay((void *)&grandchild[1]);
			_exit(0);
		}
		grandchild[0] = pid;
		while (!grandchild[1])
			usleep(500);
		_exit(0);
	}
	CHECK(child_status(parent) == 0);
	CHECK(state_number("used_bytes") == (long long)(562 * MIB));
	kill(grandchild[0], SIGKILL);
	return 0;
}
