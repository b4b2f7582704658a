/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process of a tenant works when, beside somebody latency-critical. There all timeslices are as short as can be, so
 * two processes with work would change places all the time and get nothing done: a change takes twenty times as long as
 * such a timeslice. So they divide the tenant's turn in parts, and each has one for itself. So do the contexts of one
 * process, which have timeslices of their own, with the time of the process.
 *
 * Pure: no clock, no system call, no state of its own.
 */
#ifndef HAMI_PARTS_H
#define HAMI_PARTS_H
#include "arbitration/terms.h"

/* A process among those of its tenant that have work most of the time: its number, from 0, and how many there are. */
struct hami_part {
	uint32_t rank, count; /* count 0 or 1: it has the whole turn */
};

/*
 * Returns whether it is the process's part of its tenant's turn at `now`, ns of the clock that all tenants share; sets when
 * that may change. A turn has no more parts than are worth a change: with more processes each has one every few rounds, and
 * of very many some have theirs together.
 */
bool hami_part_open(const struct hami_terms *terms, const struct hami_part *part, int64_t now,
		    int64_t *until);

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

#endif
