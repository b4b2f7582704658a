/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes of a tenant divide its time. The GPU serves each of them once in a round, so they divide the tenant's
 * timeslice: those that use all of theirs in equal parts of what the others leave. Where that is too short for all of them
 * they are open in turns. Contexts of one process have timeslices of their own, and divide those of the process.
 *
 * Beside somebody latency-critical all timeslices are as short as can be, so two processes with work would change places all
 * the time and get nothing done: a change takes twenty times as long as such a timeslice. So they divide the tenant's turn in
 * parts, and each has one for itself. So do the contexts of one process, with the time of the process.
 *
 * Pure: no clock, no system call, no state of its own.
 */
#ifndef HAMI_PARTS_H
#define HAMI_PARTS_H
#include "arbitration/terms.h"

/* A process among those that divide a time: its number, from 0, and how many there are. */
struct hami_part {
	uint32_t rank, count; /* count 0 or 1, or rank >= count: all of the time is its own */
};

/*
 * Returns whether it is the process's part of its tenant's time at `now`, ns of the clock that all tenants share; sets when
 * that may change. Beside somebody latency-critical it is one among those of its job that have work most of the time. A turn
 * has no more parts than are worth a change: with more processes each has one every few rounds, and of very many some have
 * theirs together. Elsewhere it is one among those of its step that use most of their timeslices, of whom as many are open at
 * a time as can have a timeslice.
 */
bool hami_part_open(const struct hami_terms *terms, const struct hami_part *part, int64_t now,
		    int64_t *until);

/* Returns how many processes divide the timeslice while some wait for their turn, permille; `sharers`: if all were open. */
uint32_t hami_part_sharers(const struct hami_terms *terms, const struct hami_part *part, uint32_t sharers);

/* Returns whether so many contexts with work of the process are open one at a time: together each had too short a timeslice. */
bool hami_part_one_context(const struct hami_terms *terms, const struct hami_part *part, uint32_t count);

/*
 * Returns which one of `count` contexts with work, numbered from 0, is open at `now`, while its process is; sets when that may
 * change. Each has the same. They have one part each in the process's time, or where that is short one every few times.
 */
uint32_t hami_part_context(const struct hami_terms *terms, const struct hami_part *part, uint32_t count,
			   int64_t now, int64_t *until);

/* Of samples, permille, which found work: from so many on it is there for a good part of the time. */
#define HAMI_PART_BUSY 250
/* Returns the moving mean of that after one more sample. */
uint32_t hami_part_worked(uint32_t worked, bool works);

#define HAMI_PART_MOST (HAMI_PART_FULL / 2) /* who says so much uses most of them */
/*
 * Returns how much of its timeslices a process uses, permille, after a stay on the engine of so long, ns, that no pause
 * ended. It rises at once and falls slowly: what a process takes beyond what it says its job takes from others.
 */
uint32_t hami_part_filled(uint32_t filled, int64_t stay, int64_t timeslice);
/* Returns for how much of a process one counts that says so, whatever it wrote, permille: nearly all is all. */
uint32_t hami_part_counts(uint32_t filled);
/*
 * Returns how many divide a timeslice by a new count, permille. What differs little from before is before, so that timeslices
 * seldom change: each change is a call of every process.
 */
uint32_t hami_part_settled(uint32_t before, uint32_t now);

#endif
