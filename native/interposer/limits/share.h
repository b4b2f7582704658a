/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of the GPU's time. One thread a process, started when the first compute channel is scheduled, and
 * only when there are limits. The mechanism follows from the policy; where the driver refuses it, the thread
 * logs that once and takes the next one:
 *
 *	duty     policy cap: the process's channels are enabled for cores % of a common period and paused for
 *	         the rest. Refused: gate.
 *	slice    policy burst: timeslices in proportion to cores, divided among the job's processes. Refused:
 *	         the GPU takes its turns as it would without hami_hpc.
 *	gate     policy cap without duty: launches wait for a budget that measured completions use up (gate.h)
 *
 * Only the gate is on the launch path. The thread holds no lock over an ioctl. Thread-safe, not
 * async-signal-safe. A forked child has no such thread until it schedules a channel of its own.
 */
#ifndef HAMI_SHARE_H
#define HAMI_SHARE_H
#include <stdbool.h>

/*
 * Not 0 when a launch has something to do first: a resting duty cycle to wake, or the gate to pass. The hooks
 * of launches (hooks/launch.c) do one relaxed load of it.
 */
extern _Atomic int hami_launch_flag __attribute__((visibility("hidden")));
enum { HAMI_LAUNCH_WATCHED = 1, HAMI_LAUNCH_GATED = 2 };

/*
 * Does what a launch must do first when the flag is set; `stream` as given to the launch, `per_thread` for
 * the _ptsz forms.
 */
void hami_launch_slow(void *stream, bool per_thread);

/* Starts the thread, if it does not run and there are limits: a compute group or channel was scheduled. */
void hami_share_begin(void);

/* In a forked child. */
void hami_share_forked(void);

#endif
