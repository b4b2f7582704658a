/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

static const size_t SIZE = 32 * MIB;

static struct {
	volatile int step;
	CUipcMemHandle handle;
} * box;

static void wait_for(int step)
{
	while (box->step < step)
		usleep(500);
}

static unsigned read_word(CUdeviceptr address)
{
	unsigned value = 0;
	OK(cuMemcpyDtoH(&value, address, sizeof value));
	return value;
}

static void import(void *unused)
{
	CUdeviceptr address;
	(void)unused;
	wait_for(1);
	open_device();
	OK(cuIpcOpenMemHandle(&address, box->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(read_word(address) == 77);
	box->step = 2;
	wait_for(3);
	CHECK(read_word(address) == 77);
	OK(cuIpcCloseMemHandle(address));
	box->step = 4;
	wait_for(5);
}

int main(void)
{
	CUdeviceptr address;
	make_machine("h200");
	box = shared_memory(sizeof *box);
	pid_t pid = start_child(import, NULL);
	watch_memory = hold;
	open_device();
	OK(cuMemAlloc(&address, SIZE));
	OK(cuMemsetD32(address, 77, SIZE / 4));
	OK(cuIpcGetMemHandle(&box->handle, address));
	CHECK(read_word(address) == 77);
	box->step = 1;
	wait_for(2);
	struct held *h = held_at(address);
	size_t before = used_bytes();
	take_away(h);
	CHECK(used_bytes() == before); /* the other process has it, and is charged now */
	give_back(h);
	CHECK(used_bytes() == before + SIZE);
	CHECK(read_word(address) == 0);
	OK(cuMemsetD32(address, 5, SIZE / 4));
	box->step = 3;
	wait_for(4);
	CHECK(used_bytes() == before);
	OK(cuMemFree(address));
	CHECK(used_bytes() == before - SIZE);
	box->step = 5;
	CHECK(child_status(pid) == 0);
	return 0;
}
