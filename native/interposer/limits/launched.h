/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launch does besides launching: it wakes a keeper that rests, passes the gate where there is one, and tells
 * when a request and when the first launch begins. Of several slices that is the one of the current context.
 * Thread-safe, not async-signal-safe; the lock is the gate's.
 */
#ifndef HAMI_LAUNCHED_H
#define HAMI_LAUNCHED_H
#include <stdbool.h>
#include <stdint.h>

/*
 * Not 0 when a launch has something to do first. The hooks of launches (hooks/launch.c) do one relaxed load of
 * it.
 */
extern _Atomic uint64_t hami_launch_flag __attribute__((visibility("hidden")));
/* Its bits: three of all slices together, three groups of one bit for each slice. */
#define HAMI_LAUNCH_TIMED (1ull << 48)
#define HAMI_LAUNCH_HELD (1ull << 49)
#define HAMI_LAUNCH_HINTED (1ull << 50)
#define HAMI_LAUNCH_WATCHED(slices) ((uint64_t)(slices))
#define HAMI_LAUNCH_FIRST(slices) ((uint64_t)(slices) << 16)
#define HAMI_LAUNCH_GATED(slices) ((uint64_t)(slices) << 32)

/*
 * Does what a launch must do first when the flag is set; `stream` as given to the launch, `per_thread` for
 * the _ptsz forms. Returns when the launch began, ns of hami_clock_steady(), if it is to be told
 * hami_latency_launched() afterwards; else 0.
 */
int64_t hami_launch_slow(void *stream, bool per_thread);
/* After a launch before which hami_launch_slow() was called. */
void hami_launch_slow_end(void *stream, bool per_thread);

/* Returns whether something was launched on a slice since the last call, and watches for the next launch. */
bool hami_launched(unsigned int slice);
/* Sleeps until something is launched, or hami_launched_wake() is called, at most `most` ns. True when woken. */
bool hami_launched_wait(unsigned int slice, int64_t most);
/* Ends that sleep, or the next one. */
void hami_launched_wake(unsigned int slice);
/* Returns when it begins from the next launch, once (limits/latency.h); or not any more. */
void hami_launched_time(bool timed);
/* Notes in the usage record when the next launch is, once: the process has not launched anything on the slice yet. */
void hami_launched_note_first(unsigned int slice);
/* Sends each launch on a slice through the gate from now on. */
void hami_launched_gate(unsigned int slice);

/* Lets each launch on any slice wait while work is held (limits/hold.h), from now on. */
void hami_launched_hold(void);

/* The next launch, on any slice, ends the placeholder that there is (limits/placeholder.h). */
void hami_launched_ends_placeholder(void);

/* In a forked child. */
void hami_launched_forked(void);

#endif
