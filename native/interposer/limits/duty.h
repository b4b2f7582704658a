/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a duty cycle: when each window begins and how long it lasts. Nanoseconds. Pure: no lock, no
 * state of its own.
 */
#ifndef HAMI_DUTY_H
#define HAMI_DUTY_H
#include <stdint.h>

struct hami_duty {
	int64_t period;
	int64_t on;    /* wanted window a period */
	int64_t phase; /* of the window's start in the period */
	int64_t owed;  /* what windows so far fell short by (or, negative, took too much) */
};

/* Returns the cycle for `cores` percent, starting at `phase` percent of the period. */
struct hami_duty hami_duty_plan(uint32_t cores, uint32_t phase);
/* Returns the start of the first window after `now`; both in ns of hami_clock_shared(). */
int64_t hami_duty_next(const struct hami_duty *duty, int64_t now);
/* Returns the length of the next window, corrected by what is owed. */
int64_t hami_duty_window(const struct hami_duty *duty);
/* Accounts for a window that was `on` ns long. */
void hami_duty_done(struct hami_duty *duty, int64_t on);

#endif
