/* SPDX-License-Identifier: Apache-2.0 */
/* A thread pauses and resumes its own process; the schedule must follow it to the point. Two processes in
 * opposite phase have the GPU in turn. */
#include "watch.h"

#include <pthread.h>

static struct {
	volatile int ready, stop;
	uint64_t busy_ns[2], span_ns[2];
} * board;

static struct {
	uint64_t on_ns, off_ns, phase_ns;
	_Atomic int stop;
} cycle;

/* Times from CLOCK_MONOTONIC modulo the period, so that processes agree on the phase. */
static void *pause_and_resume(void *unused)
{
	int paused = 0;
	while (!cycle.stop) {
		uint64_t period = cycle.on_ns + cycle.off_ns,
			 at = (now_ns() + period - cycle.phase_ns) % period;
		int want = at >= cycle.on_ns;
		if (want != paused)
			CHECK(set_disabled((paused = want) != 0) == RM_OK);
		usleep(100);
	}
	if (paused)
		CHECK(set_disabled(false) == RM_OK);
	return unused;
}

/* Work for span_ms under the duty cycle; the share of the time that the GPU worked for us. */
static double share(CUfunction f, uint64_t on_ms, uint64_t off_ms, uint64_t phase_ms, uint64_t span_ms)
{
	pthread_t thread;
	CUevent from, to;
	float ms;
	uint64_t count = 0, start = now_ns();
	cycle.on_ns = on_ms * MS;
	cycle.off_ns = off_ms * MS;
	cycle.phase_ns = phase_ms * MS;
	cycle.stop = 0;
	CHECK(pthread_create(&thread, NULL, pause_and_resume, NULL) == 0);
	OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
	OK(cuEventRecord(from, NULL));
	for (; now_ns() - start < span_ms * MS; count++) {
		spin(f, NULL, MS);
		if (count % 4 == 3)
			OK(cuStreamSynchronize(NULL));
	}
	OK(cuEventRecord(to, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuEventElapsedTime(&ms, from, to));
	cycle.stop = 1;
	pthread_join(thread, NULL);
	return (double)count / (double)ms * 100;
}

static void tenant(void *phase)
{
	memset(&watch, 0, sizeof watch);
	open_device();
	CUfunction f = spin_function();
	__sync_fetch_and_add(&board->ready, 1);
	while (board->ready < 2)
		usleep(100);
	double percent = share(f, 10, 10, *(uint64_t *)phase, 400);
	fprintf(stderr, "on 10 ms, off 10 ms, phase %llu ms beside another: %.1f %%\n",
		*(unsigned long long *)phase, percent);
	CHECK(percent > 40 && percent < 54);
}

int main(void)
{
	static const uint64_t cycles[][2] = {{5, 15}, {10, 10}, {15, 5}};
	make_machine("h200");
	board = shared_memory(sizeof *board);
	open_device();
	CUfunction f = spin_function();
	for (size_t i = 0; i < sizeof cycles / sizeof *cycles; i++) {
		double percent = share(f, cycles[i][0], cycles[i][1], 0, 400);
		double wanted = (double)cycles[i][0] * 5;
		fprintf(stderr, "on %d ms, off %d ms: %.1f %%\n", (int)cycles[i][0], (int)cycles[i][1],
			percent);
		CHECK(percent > wanted - 6 && percent < wanted + 6);
	}
	uint64_t phase[2] = {0, 10};
	pid_t a = start_child(tenant, &phase[0]), b = start_child(tenant, &phase[1]);
	CHECK(child_status(a) == 0 && child_status(b) == 0);
	return 0;
}
