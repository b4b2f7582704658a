/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of the GPU's time. One thread a process, started when the first compute context is made, and only
 * when the limits ask for something. Mechanisms, each falling back to the next with one log line when the
 * driver refuses it: duty    policy cap: the process's channels are enabled for cores % of a common period
 * and paused for the rest slice   policy burst: timeslices in proportion to cores, divided among the job's
 * processes gate    policy cap without duty: launches wait for a budget that measured completions use up
 * (gate.c) Only the gate is on the launch path. The thread holds no lock over an ioctl.
 */
#ifndef HAMI_COMPUTE_H
#define HAMI_COMPUTE_H
#include <stdbool.h>
#include <stdint.h>

/* A duty cycle; nanoseconds. The functions on it are pure. */
struct hami_duty {
	int64_t period;
	int64_t on;    /* wanted window a period */
	int64_t phase; /* of the window's start in the period */
	int64_t owed;  /* what windows so far fell short by (or, negative, took too much) */
};

/* The cycle for `cores` percent, starting at `phase` percent of the period. */
struct hami_duty hami_duty_plan(uint32_t cores, uint32_t phase);
/* Start of the first window after `now`; both in ns of CLOCK_REALTIME. */
int64_t hami_duty_next(const struct hami_duty *duty, int64_t now);
/* Length of the next window, corrected by what is owed. */
int64_t hami_duty_window(const struct hami_duty *duty);
/* Accounts for a window that was `on` ns long. */
void hami_duty_done(struct hami_duty *duty, int64_t on);

/*
 * Nonzero when a launch has something to do first: a parked keeper to wake, or the gate to pass. The hooks of
 * launches (launch.c) do one relaxed load of it.
 */
extern _Atomic int hami_launch_flag __attribute__((visibility("hidden")));
enum { HAMI_LAUNCH_WATCHED = 1, HAMI_LAUNCH_GATED = 2 };

/* What a launch does when the flag is set; `stream` as given to the launch, `per_thread` for the _ptsz forms.
 */
void hami_launch_slow(void *stream, bool per_thread);

/* gate.c: cap in software. */
void hami_gate_open(uint32_t cores);
void hami_gate_pass(void *stream, bool per_thread);
void hami_gate_forked(void);

/* Whether NVML saw this process use the GPU's multiprocessors in about the last second; true when it cannot
 * say. */
bool hami_gpu_used_lately(void);

void hami_compute_forked(void);

#endif
