/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static int *ready;

static void take_and_stay(void *argument)
{
	CUdeviceptr p;
	open_device();
	OK(cuMemAlloc(&p, *(size_t *)argument));
	*ready = 1;
	pause();
}

static void take_and_die(size_t bytes)
{
	*ready = 0;
	pid_t pid = start_child(take_and_stay, &bytes);
	while (!*ready)
		usleep(1000);
	kill(pid, SIGKILL);
	CHECK(WTERMSIG(child_status(pid)) == SIGKILL);
}

int main(void)
{
	enum { ROUNDS = 5 };
	make_machine("h200");
	ready = shared_memory(sizeof *ready);
	/* Each takes most of the GPU: none would find room if the one before were still counted. */
	for (int i = 0; i < ROUNDS; i++)
		take_and_die(100000 * MIB);
	CHECK(state_number("used_bytes") == 0);
	/* Nor does the high-water mark ever count two of them. */
	CHECK(state_number("peak_bytes") == (long long)(100512 * MIB));
	CHECK(state_number("reclaimed_processes") == ROUNDS);
	CHECK(state_number("reclaimed_bytes") == (long long)(ROUNDS * 100512 * MIB));
	return 0;
}
