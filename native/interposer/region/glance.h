/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of the usage record, and additions to this process's own slot, without the record's lock.
 * Thread-safe, async-signal-safe; no fork handler, as there is no lock.
 */
#ifndef HAMI_GLANCE_H
#define HAMI_GLANCE_H
#include "arbitration/parts.h"
#include "region/region.h"

/* Returns the bytes that this process holds. */
uint64_t hami_region_own(struct hami_region *region);

/* Returns how many of this step's processes hold a slot; 0 before this one's first charge. */
uint32_t hami_region_step_processes(struct hami_region *region);

/* Returns how many of the job's processes hold a slot. */
uint32_t hami_region_processes(struct hami_region *region);

/* Returns the GPU's time that all processes of the job have used, those that have ended too, ns. */
uint64_t hami_region_time_used(const struct hami_region *region);

/* Notes that this process has work on the GPU for a good part of its time, at `now` (hami_clock_shared()). */
void hami_region_note_busy(struct hami_region *region, int64_t now);

/* Notes how much of its timeslices this process uses, permille (hami_part_filled()). */
void hami_region_note_filled(struct hami_region *region, uint32_t filled);

/*
 * The processes that have work: this one among those of the job (all zeros: it is none of them), and among those of its step
 * that use most of their timeslices (rank >= count: it is none); and of its step the sum of hami_part_counts().
 */
struct hami_crowd {
	struct hami_part of_job, of_step;
	uint32_t sharers;
};
/* Returns the job's processes of which work was noted since `since`; none where the job has one process. */
struct hami_crowd hami_region_crowd(struct hami_region *region, int64_t since);

/* Counts a request that the limits allowed and the driver refused. */
void hami_region_lacking(struct hami_region *region);

/* Adds to this process's GPU time and time held back, ns. */
void hami_region_add_time(struct hami_region *region, uint64_t busy_ns, uint64_t throttled_ns);

#endif
