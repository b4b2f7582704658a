/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread pauses and resumes its own process. What the GPU did for it must be the time that it was not
 * paused, by the thread's own account, however the host's scheduler treated the thread. Two processes in
 * opposite phase have the GPU in turn.
 */
#include "watch.h"

#include <pthread.h>

enum { PAUSE_NS = 620000, RESUME_NS = 305000 };

static struct {
	volatile int ready;
} * board;

static struct {
	uint64_t on_ns, off_ns, phase_ns;
	_Atomic int stop;
	/* At least, and at most: the calls take their time, and the thread may lose its processor. */
	uint64_t paused_ns[2];
} cycle;

/* Times from CLOCK_MONOTONIC modulo the period, so that processes agree on the phase. */
static void *pause_and_resume(void *unused)
{
	uint64_t period = cycle.on_ns + cycle.off_ns, since[2] = {0, 0};
	cycle.paused_ns[0] = cycle.paused_ns[1] = 0;
	while (!cycle.stop || since[0]) {
		uint64_t at = (now_ns() + period - cycle.phase_ns) % period;
		int want = at >= cycle.on_ns && !cycle.stop;
		uint64_t call = now_ns();
		if (want && !since[0]) {
			CHECK(set_disabled(true) == RM_OK);
			since[0] = now_ns();
			since[1] = call + PAUSE_NS;
		} else if (!want && since[0]) {
			CHECK(set_disabled(false) == RM_OK);
			cycle.paused_ns[0] += call + RESUME_NS - since[0];
			cycle.paused_ns[1] += now_ns() - since[1];
			since[0] = 0;
		}
		usleep(100);
	}
	return unused;
}

struct outcome {
	double work_ms, span_ms;
	double most_ms, least_ms; /* not paused */
};

/* work_ms of kernels under the duty cycle. */
static struct outcome run(CUfunction f, uint64_t on_ms, uint64_t off_ms, uint64_t phase_ms, int work_ms)
{
	pthread_t thread;
	CUevent from, to;
	float ms;
	cycle.on_ns = on_ms * MS;
	cycle.off_ns = off_ms * MS;
	cycle.phase_ns = phase_ms * MS;
	cycle.stop = 0;
	CHECK(pthread_create(&thread, NULL, pause_and_resume, NULL) == 0);
	OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
	OK(cuEventRecord(from, NULL));
	for (int i = 0; i < work_ms; i++)
		spin(f, NULL, MS);
	OK(cuEventRecord(to, NULL));
	OK(cuStreamSynchronize(NULL));
	cycle.stop = 1;
	pthread_join(thread, NULL);
	OK(cuEventElapsedTime(&ms, from, to));
	/* The last pause may reach past the last kernel. */
	return (struct outcome){work_ms, (double)ms,
				(double)ms - (double)cycle.paused_ns[0] * 1e-6 + (double)off_ms + 1,
				(double)ms - (double)cycle.paused_ns[1] * 1e-6};
}

static void tenant(void *phase)
{
	memset(&watch, 0, sizeof watch);
	open_device();
	CUfunction f = spin_function();
	__sync_fetch_and_add(&board->ready, 1);
	while (board->ready < 2)
		usleep(100);
	struct outcome o = run(f, 10, 10, *(uint64_t *)phase, 200);
	fprintf(stderr, "10 of 20 ms, phase %2d ms, beside another: %.1f %%, of %.1f %% allowed\n",
		(int)*(uint64_t *)phase, o.work_ms / o.span_ms * 100, o.least_ms / o.span_ms * 100);
	CHECK(o.work_ms <= o.most_ms);
	CHECK(o.work_ms >= o.least_ms * 0.7); /* the other's share of what overlaps */
}

int main(void)
{
	static const uint64_t cycles[][2] = {{5, 15}, {10, 10}, {15, 5}};
	make_machine("h200");
	board = shared_memory(sizeof *board);
	open_device();
	CUfunction f = spin_function();
	for (size_t i = 0; i < sizeof cycles / sizeof *cycles; i++) {
		struct outcome o = run(f, cycles[i][0], cycles[i][1], 0, 20 * (int)cycles[i][0]);
		fprintf(stderr, "%2d of 20 ms: %.1f %%, of %.1f %% allowed\n", (int)cycles[i][0],
			o.work_ms / o.span_ms * 100, o.least_ms / o.span_ms * 100);
		CHECK(o.work_ms > o.least_ms - 0.1 && o.work_ms <= o.most_ms);
	}
	uint64_t phase[2] = {0, 10};
	pid_t a = start_child(tenant, &phase[0]), b = start_child(tenant, &phase[1]);
	CHECK(child_status(a) == 0 && child_status(b) == 0);
	return 0;
}
