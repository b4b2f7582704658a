/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launch does besides launching: it wakes a keeper that rests, and passes the gate where there is one.
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
extern _Atomic int hami_launch_flag __attribute__((visibility("hidden")));
enum { HAMI_LAUNCH_WATCHED = 1, HAMI_LAUNCH_GATED = 2 };

/*
 * Does what a launch must do first when the flag is set; `stream` as given to the launch, `per_thread` for
 * the _ptsz forms.
 */
void hami_launch_slow(void *stream, bool per_thread);

/* Returns whether something was launched since the last call, and watches for the next launch. */
bool hami_launched(void);
/* Sleeps until something is launched, or hami_launched_wake() is called, at most `most` ns. True when woken. */
bool hami_launched_wait(int64_t most);
/* Ends that sleep, or the next one. */
void hami_launched_wake(void);
/* Sends each launch through the gate from now on. */
void hami_launched_gate(void);

/* In a forked child. */
void hami_launched_forked(void);

#endif
