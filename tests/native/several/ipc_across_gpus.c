/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process on the first GPU gives memory to a process that works on the second: it stays charged to the first, there,
 * also while the second has it open.
 */
#include <sys/mman.h>
#include <sys/wait.h>

#include "several.h"

static struct box {
	volatile int step;
	CUipcMemHandle handle;
} * box;

static void wait_for(int step)
{
	for (int i = 0; box->step < step; i++) {
		CHECK(i < 20000);
		usleep(500);
	}
}

static void in_child(void)
{
	CUdeviceptr opened, own;
	unsigned value = 0;
	open_all();
	wait_for(1);
	size_t first = free_on(0), second = free_on(1);
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuIpcOpenMemHandle(&opened, box->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(free_on(0) == first && free_on(1) == second);
	OK(cuCtxSetCurrent(contexts[1]));
	OK(cuMemAlloc(&own, 64 * MIB));
	OK(cuMemcpyDtoD(own, opened, 4096));
	OK(cuMemcpyDtoH(&value, own, sizeof value));
	CHECK(value == 4711);
	CHECK(free_on(0) == first && free_on(1) == second - 64 * MIB);
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuIpcCloseMemHandle(opened));
	CHECK(free_on(0) == first);
	box->step = 2;
	_exit(0);
}

int main(void)
{
	CUdeviceptr a;
	int status;
	box = mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(box != MAP_FAILED);
	pid_t child = fork();
	if (!child)
		in_child();
	read_limits();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemAlloc(&a, 256 * MIB));
	OK(cuMemsetD32(a, 4711, 1));
	OK(cuIpcGetMemHandle(&box->handle, a));
	box->step = 1;
	wait_for(2);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
