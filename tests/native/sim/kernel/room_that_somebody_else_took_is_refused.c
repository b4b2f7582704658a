/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

static const size_t SIZE = 1024 * MIB;

static struct {
	volatile int step;
	volatile int refused;
} * box;

static void wait_for(int step)
{
	while (box->step < step)
		usleep(500);
}

/* Everything that is free, once the other process has given back its memory. */
static void take_all(void *unused)
{
	CUdeviceptr address;
	(void)unused;
	open_device();
	box->refused = cuMemAlloc(&address, free_memory() + SIZE) == CUDA_ERROR_OUT_OF_MEMORY;
	box->step = 1;
	wait_for(2);
	OK(cuMemAlloc(&address, free_memory()));
	box->step = 3;
	wait_for(4);
}

int main(void)
{
	CUdeviceptr address;
	make_machine("h200");
	box = shared_memory(sizeof *box);
	pid_t pid = start_child(take_all, NULL);
	wait_for(1);
	CHECK(box->refused);
	watch_memory = hold;
	open_device();
	OK(cuMemAlloc(&address, SIZE));
	struct held *h = held_at(address);
	size_t free_before = free_memory();
	take_away(h);
	CHECK(free_memory() == free_before + SIZE);
	box->step = 2;
	wait_for(3);
	CHECK(free_memory() == 0);
	size_t used = used_bytes();
	CHECK(allocate_object(h) == RM_NO_MEMORY);
	CHECK(map_external(h) == RM_OBJECT_NOT_FOUND);
	CHECK(used_bytes() == used);
	box->step = 4;
	CHECK(child_status(pid) == 0);
	give_back(h);
	CHECK(free_memory() > 0);
	OK(cuMemsetD8(address, 1, SIZE));
	OK(cuMemFree(address));
	return 0;
}
