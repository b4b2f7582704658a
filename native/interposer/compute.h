/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of the GPU's time. One thread a process, started when the first compute context is made and only
 * if the limits ask for something: cap    duty cycle: the process's channels are enabled for cores % of a
 * common period and paused for the rest burst  timeslices in proportion to cores, divided among the job's
 * processes Nothing of this is on the launch path.
 */
#ifndef HAMI_COMPUTE_H
#define HAMI_COMPUTE_H
#include <stdbool.h>
#include <stdint.h>

/* One period of a duty cycle, nanoseconds. Pure; tests/native/test_duty.c. */
struct hami_duty {
	int64_t period, on; /* wanted */
	int64_t phase;      /* of the window's start in the period */
	int64_t owed;       /* on-time that the cycles so far fell short of (or, negative, took too much) */
	int64_t pause_lead, resume_lead; /* how long before its effect a call is made */
};

/* The period, window and phase for `cores` percent starting at `phase` percent. */
struct hami_duty hami_duty_plan(uint32_t cores, uint32_t phase);
/* Start of the next window, effective time, strictly after `now`; both in ns of CLOCK_REALTIME. */
int64_t hami_duty_next(const struct hami_duty *duty, int64_t now);
/* Length of the next window, corrected by what is owed. */
int64_t hami_duty_window(const struct hami_duty *duty);
/* Accounts for a window that was effective for `on` ns. */
void hami_duty_done(struct hami_duty *duty, int64_t on);

void hami_compute_forked(void);

#endif
