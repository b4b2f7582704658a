/* SPDX-License-Identifier: Apache-2.0 */
/* Eight processes compete for one GPU's memory while some are killed at any line; their own sum checks it. */
#include "check.h"

#include <stdatomic.h>

enum { PROCESSES = 8, ROUNDS = 6 };

static struct witness {
	_Atomic size_t held[PROCESSES];
} * witness;
static int number;

static void fight(void *unused)
{
	(void)unused;
	CUdeviceptr p[16] = {0};
	size_t size[16];
	srand((unsigned)getpid());
	CUcontext context;
	OK(cuInit(0));
	while (cuCtxCreate(&context, NULL, 0, 0) != CUDA_SUCCESS) /* the others may have taken everything */
		usleep(1000);
	for (;;) {
		int i = rand() % 16;
		if (p[i]) {
			OK(cuMemFree(p[i]));
			atomic_fetch_sub(&witness->held[number], size[i]);
			p[i] = 0;
			continue;
		}
		size[i] = (size_t)(1 + rand() % 4000) * 2 * MIB;
		CUresult result = cuMemAlloc(&p[i], size[i]);
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
		if (result == CUDA_SUCCESS)
			atomic_fetch_add(&witness->held[number], size[i]);
		else
			p[i] = 0;
	}
}

int main(void)
{
	make_machine("a100-40");
	witness = shared_memory(sizeof *witness);
	for (int round = 0; round < ROUNDS; round++) {
		pid_t pid[PROCESSES];
		memset(witness, 0, sizeof *witness);
		for (number = 0; number < PROCESSES; number++)
			pid[number] = start_child(fight, NULL);
		usleep(150000);
		for (int i = 0; i < PROCESSES; i++) {
			kill(pid[i], SIGKILL);
			CHECK(WIFSIGNALED(child_status(pid[i])));
			usleep(5000);
		}
		CHECK(state_number("used_bytes") == 0);
	}
	CHECK(state_number("allocations") > 1000);
	CHECK(state_number("refusals") > 0);
	CHECK(state_number("peak_bytes") <= state_number("total_bytes"));
	CHECK(state_number("peak_bytes") > state_number("total_bytes") * 9 / 10);
	return 0;
}
