/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static struct result {
	int started;
	uint64_t end_ns;
} * results;

struct work {
	int number;
	uint64_t each_ns;
	int count;
};

static void work(void *argument)
{
	struct work *w = argument;
	open_device();
	CUfunction f = spin_function();
	results[w->number].started = 1;
	while (!results[0].started || !results[1].started)
		usleep(200);
	for (int i = 0; i < w->count; i++)
		spin(f, NULL, w->each_ns);
	OK(cuCtxSynchronize());
	results[w->number].end_ns = now_ns();
}

int main(void)
{
	make_machine("h200");
	results = shared_memory(2 * sizeof *results);
	uint64_t start = now_ns();
	struct work a = {0, 200 * MS, 1}, b = {1, MS, 100};
	pid_t first = start_child(work, &a), second = start_child(work, &b);
	CHECK(child_status(first) == 0 && child_status(second) == 0);
	/*
	 * 300 ms of work and a switch of 0.2 ms each 2 ms: while both run each has half of the GPU, so that
	 * the one with 100 ms is done after a little more than 200, in the middle of the other's single
	 * kernel.
	 */
	double a_ms = (double)(results[0].end_ns - start) * 1e-6,
	       b_ms = (double)(results[1].end_ns - start) * 1e-6;
	fprintf(stderr, "200 ms of work done after %.1f ms, 100 ms after %.1f ms\n", a_ms, b_ms);
	CHECK(b_ms > 200 && b_ms < a_ms - 50);
	CHECK(a_ms > 310);
	CHECK(state_number("busy_ns") == (long long)(300 * MS));
	long long switches = state_number("switches");
	CHECK(switches > 80 && switches < 110);
	return 0;
}
