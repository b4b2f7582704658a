/* SPDX-License-Identifier: Apache-2.0 */
/* The duty cycle's arithmetic, with a machine that wakes late and calls that take their time. */
#include "check.h"
#include "limits/duty.h"

#define MS 1000000ll

/* The share that a thread gets over `seconds` when each call comes up to `late` ns late. */
static double simulate(struct hami_duty duty, double seconds, int64_t late)
{
	int64_t now = 1700000000ll * 1000 * MS, begin = now, on = 0;
	unsigned int seed = 1;
	while (now < begin + (int64_t)(seconds * 1e9)) {
		int64_t start = hami_duty_next(&duty, now), length = hami_duty_window(&duty);
		int64_t from = start + (late ? rand_r(&seed) % late : 0);
		int64_t to = start + length + (late ? rand_r(&seed) % late : 0);
		CHECK(start > now && start - now <= duty.period);
		CHECK((start - duty.phase) % duty.period == 0);
		CHECK(length >= 0 && length < duty.period);
		hami_duty_done(&duty, to - from);
		on += to - from;
		now = to;
	}
	return 100.0 * (double)on / (double)(now - begin);
}

int main(void)
{
	for (uint32_t cores = 1; cores < 100; cores++) {
		struct hami_duty duty = hami_duty_plan(cores, cores * 7);
		CHECK(100 * MS % duty.period == 0); /* any window of 100 ms holds the same share */
		CHECK(duty.phase >= 0 && duty.phase < duty.period);
		CHECK(duty.on * 100 == duty.period * cores);
		double exact = simulate(duty, 20, 0), late = simulate(duty, 20, 300000);
		CHECK(exact > cores - 0.3 && exact < cores + 0.3);
		CHECK(late > cores - 0.5 && late < cores + 0.5);
	}
	/* A window that took far too much is given back; one that fell far short is not paid back at once. */
	struct hami_duty duty = hami_duty_plan(50, 0);
	hami_duty_done(&duty, 40 * MS);
	CHECK(hami_duty_window(&duty) == 10 * MS);
	duty = hami_duty_plan(50, 0);
	hami_duty_done(&duty, 0);
	CHECK(hami_duty_window(&duty) > 25 * MS && hami_duty_window(&duty) <= 29 * MS);
	/* The first window of a tenant comes within a period, wherever the clock stands. */
	for (int64_t now = -200 * MS; now < 200 * MS; now += MS / 3)
		CHECK(hami_duty_next(&duty, now) > now && hami_duty_next(&duty, now) <= now + duty.period);
	return 0;
}
