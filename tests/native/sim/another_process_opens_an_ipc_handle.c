/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static struct box {
	volatile int step;
	CUipcMemHandle large, small;
} * box;

static void wait_for(int step)
{
	while (box->step < step)
		usleep(500);
}

static void offer(void *unused)
{
	(void)unused;
	CUdeviceptr large, small, opened;
	unsigned value;
	open_device();
	OK(cuMemAlloc(&large, 20 * MIB));
	OK(cuMemAlloc(&small, 1000));
	OK(cuMemsetD32(large + 4 * MIB, 11, 1));
	OK(cuMemsetD32(small, 22, 1));
	OK(cuIpcGetMemHandle(&box->large, large));
	OK(cuIpcGetMemHandle(&box->small, small));
	GIVES(CUDA_ERROR_INVALID_CONTEXT,
	      cuIpcOpenMemHandle(&opened, box->large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	box->step = 1;
	wait_for(2);
	OK(cuMemcpyDtoH(&value, large + 4 * MIB, sizeof value));
	CHECK(value == 33); /* what the other wrote */
	OK(cuMemFree(small));
	box->step = 3;
	pause();
}

static long files_left(void)
{
	char command[128];
	snprintf(command, sizeof command, "ls %s/shared | wc -l", machine_dir);
	FILE *pipe = popen(command, "r");
	char line[32] = "";
	CHECK(pipe && fgets(line, sizeof line, pipe));
	pclose(pipe);
	return atol(line);
}

int main(void)
{
	CUdeviceptr large, small, twice;
	unsigned value;
	make_machine("h200");
	box = shared_memory(sizeof *box);
	pid_t pid = start_child(offer, NULL);
	wait_for(1);
	open_device();
	size_t before = free_memory();
	OK(cuIpcOpenMemHandle(&large, box->large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuIpcOpenMemHandle(&twice, box->large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(twice == large);
	OK(cuIpcOpenMemHandle(&small, box->small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(free_memory() == before);
	OK(cuMemcpyDtoH(&value, large + 4 * MIB, sizeof value));
	CHECK(value == 11);
	OK(cuMemcpyDtoH(&value, small, sizeof value));
	CHECK(value == 22);
	OK(cuMemsetD32(large + 4 * MIB, 33, 1));
	box->step = 2;
	wait_for(3);
	kill(pid, SIGKILL);
	child_status(pid);
	/* The owner's context is gone; what we opened is not. */
	CHECK(free_memory() == before + 512 * MIB);
	OK(cuMemcpyDtoH(&value, small, sizeof value));
	CHECK(value == 22);
	OK(cuIpcCloseMemHandle(large));
	OK(cuMemcpyDtoH(&value, large, sizeof value));
	OK(cuIpcCloseMemHandle(large));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large));
	OK(cuIpcCloseMemHandle(small));
	CHECK(free_memory() == before + 534 * MIB);
	CHECK(files_left() == 0);
	return 0;
}
