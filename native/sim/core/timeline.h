/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How channel groups share one GPU's time: round robin among those that have work and are not paused, each for its
 * timeslice. A group is the line of work of a slot (state.h), as a channel group's runlist does it. Nothing runs by itself: whoever looks advances the
 * schedule to the present, always to the same result.
 *
 * All functions but timeline_now and timeline_wait are called with the shared mutex held.
 */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H
#include "state.h"

#include <time.h>

static inline uint64_t timeline_clock(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t timeline_now(void)
{
	return timeline_clock(CLOCK_MONOTONIC);
}

/* Decides what ran on gpu up to now_ns. */
void timeline_advance(struct sim_view *view, uint32_t gpu, uint64_t now_ns);

/* Appends length_ns of work to a line of this process; the position of its end. Counts no launch. */
uint64_t timeline_submit(struct sim_view *view, uint32_t line, uint32_t gpu, uint64_t length_ns);

/*
 * Returns when the line's work up to position was over: CLOCK_MONOTONIC ns. Call it soon after: the log
 * holds the last SIM_LOG_LENGTH runs, and for a position that has left it the oldest time known is returned.
 */
uint64_t timeline_time_of(struct sim_view *view, uint32_t line, uint32_t gpu, uint64_t position);

/*
 * Returns the time before which position cannot be reached; SIM_NEVER while nothing says when the line may
 * run again.
 */
uint64_t timeline_earliest(struct sim_view *view, uint32_t line, uint32_t gpu, uint64_t position);

/*
 * From at_ns on the work of the line that has slot is paused, or runs again. A pause ends the stay of whoever is on the
 * engine, and the next one follows (seen on an H200).
 */
void timeline_pause(struct sim_view *view, uint32_t slot, uint32_t gpu, uint64_t at_ns);
void timeline_resume(struct sim_view *view, uint32_t slot, uint32_t gpu, uint64_t at_ns);

/* Ends that stay now, and the round begins anew with the first line that has work, as by a change of a timeslice. */
void timeline_begin_anew(struct sim_view *view, uint32_t gpu);

/* Sleeps until the line's work on gpu has reached position. Without the mutex. */
void timeline_wait(struct sim_view *view, uint32_t line, uint32_t gpu, uint64_t position);

/* True when position has been reached. Without the mutex. */
bool timeline_reached(struct sim_view *view, uint32_t line, uint32_t gpu, uint64_t position);
#endif
