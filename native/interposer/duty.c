/* SPDX-License-Identifier: Apache-2.0 */
#include "compute.h"

#define MS 1000000ll

/*
 * 20 ms and 50 ms both divide 100 ms, so that any window of 100 ms holds the same share. The longer one is
 * for shares whose window or gap would be too short for the calls that make it (about 0.9 ms for a pause and
 * a resume on an H200). Shares that add up to 100 get the same period, so their windows can be laid side by
 * side.
 */
struct hami_duty hami_duty_plan(uint32_t cores, uint32_t phase)
{
	uint32_t shorter = cores < 50 ? cores : 100 - cores;
	struct hami_duty d = {.period = shorter * 20 * MS / 100 < 3 * MS / 2 ? 50 * MS : 20 * MS};
	d.on = d.period * cores / 100;
	d.phase = d.period * (phase % 100) / 100;
	return d;
}

int64_t hami_duty_next(const struct hami_duty *duty, int64_t now)
{
	int64_t into = (now - duty->phase) % duty->period;
	return now - into + duty->period;
}

int64_t hami_duty_window(const struct hami_duty *duty)
{
	int64_t on = duty->on + duty->owed;
	int64_t most = duty->period - (duty->pause_lead + duty->resume_lead);
	if (on > most)
		on = most;
	return on < 0 ? 0 : on;
}

void hami_duty_done(struct hami_duty *duty, int64_t on)
{
	duty->owed += duty->on - on;
	/* A debt older than a few windows is the machine's, not the tenant's: do not pay it back in one
	 * burst. */
	if (duty->owed > duty->on / 4)
		duty->owed = duty->on / 4;
	if (duty->owed < -duty->period)
		duty->owed = -duty->period;
}
