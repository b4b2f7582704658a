/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

static double ms_since(uint64_t start)
{
	return (double)(now_ns() - start) * 1e-6;
}

static bool in_the_middle_of_a_kernel(CUfunction f)
{
	uint64_t start = now_ns();
	spin(f, NULL, 60 * MS);
	usleep(20000);
	uint64_t call = now_ns();
	CHECK(set_disabled(true) == RM_OK);
	uint64_t stopped = call + 620000;
	CHECK(now_ns() >= stopped);
	long long busy = state_number("busy_ns");
	CHECK(state_number("pauses") > 0);
	usleep(50000);
	CHECK(state_number("busy_ns") == busy);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	call = now_ns();
	CHECK(set_disabled(false) == RM_OK);
	CHECK(now_ns() - call >= 305000);
	double paused = (double)(call + 305000 - stopped) * 1e-6;
	OK(cuStreamSynchronize(NULL));
	double took = ms_since(start);
	fprintf(stderr, "a kernel of 60 ms, paused for %.1f: %.1f ms\n", paused, took);
	CHECK(took > 60 + paused - 1);
	return took < 60 + paused + 15;
}

/* This process woke up late: another one had its processor. */
static void some_time(bool (*in_time)(CUfunction f), CUfunction f)
{
	int attempts = 10;
	while (!in_time(f))
		CHECK(--attempts);
}

static void all_channels_or_none(CUfunction f)
{
	long long pauses = state_number("pauses");
	spin(f, NULL, 20 * MS);
	CHECK(set_disabled_some(true, 7) == RM_OK);
	OK(cuStreamSynchronize(NULL));
	CHECK(state_number("pauses") == pauses);
	CHECK(set_disabled(false) == RM_OK);
}

static void scheduling_controls_pause_nothing(CUfunction f)
{
	const struct seen *s = subdevice();
	uint8_t off = 0;
	long long pauses = state_number("pauses");
	spin(f, NULL, 20 * MS);
	CHECK(control(s->fd, s->client, watch.compute_group, RM_GROUP_SCHEDULE, &off, 1) == RM_OK);
	CHECK(control(s->fd, s->client, watch.compute_group, RM_GROUP_PREEMPT, &off, 1) == RM_OK);
	OK(cuStreamSynchronize(NULL));
	CHECK(state_number("pauses") == pauses);
}

/* Who forgets to enable stays paused; the process's end clears it away. */
static void child(void *unused)
{
	(void)unused;
	memset(&watch, 0, sizeof watch);
	open_device();
	spin(spin_function(), NULL, 1000 * MS);
	CHECK(set_disabled(true) == RM_OK);
	for (int i = 0; i < 20; i++) {
		usleep(10000);
		GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	}
}

int main(void)
{
	make_machine("h200");
	open_device();
	CUfunction f = spin_function();
	some_time(in_the_middle_of_a_kernel, f);
	all_channels_or_none(f);
	scheduling_controls_pause_nothing(f);
	CHECK(child_status(start_child(child, NULL)) == 0);
	spin(f, NULL, 20 * MS);
	OK(cuStreamSynchronize(NULL));
	return 0;
}
