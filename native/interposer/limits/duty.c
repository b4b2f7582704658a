/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/duty.h"

#define MS 1000000ll

/*
 * 50 ms divide 100 ms, so that any window of 100 ms holds the same share; one period for all lets the windows
 * of tenants lie side by side; and the calls that make a window (0.3 to 0.6 ms for a resume, 0.6 to 0.7 for a
 * pause on an H200) are small against it.
 */
#define PERIOD (50 * MS)

struct hami_duty hami_duty_plan(uint32_t cores, uint32_t phase)
{
	struct hami_duty d = {.period = PERIOD};
	d.on = d.period * cores / 100;
	d.phase = d.period * (phase % 100) / 100;
	return d;
}

int64_t hami_duty_next(const struct hami_duty *duty, int64_t now)
{
	int64_t into = (now - duty->phase) % duty->period;
	return now - into + (into < 0 ? 0 : duty->period);
}

int64_t hami_duty_window(const struct hami_duty *duty)
{
	const int64_t least_gap = MS / 2; /* the next window must still start on time */
	int64_t on = duty->on + duty->owed, most = duty->period - least_gap;
	return on > most ? most : on < 0 ? 0 : on;
}

/*
 * A window falls short because the thread was woken late. Each later window pays back at most an eighth of
 * its length, so that no 100 ms hold much more than the share; time taken too much is given back at once.
 */
void hami_duty_done(struct hami_duty *duty, int64_t on)
{
	duty->owed += duty->on - on;
	if (duty->owed > duty->on / 8)
		duty->owed = duty->on / 8;
	if (duty->owed < -duty->period)
		duty->owed = -duty->period;
}
