/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's region: what root allows (limits records, mapped read-only) and what the job's processes hold
 * (usage record, mapped shared). Layout: hami_contract.h.
 *
 * Every process takes one slot of the usage record before its first charge and is alive for the others as
 * long as it holds the slot's byte lock (an open-file-description lock, which the kernel drops at its death,
 * in any PID namespace). All sums change under `lock`, which names its owner's slot: a waiter that finds the
 * owner dead takes the lock over and computes the sums again from the slots. The lock is held for a few
 * stores, or for a sweep of dead slots when a request does not fit; never over a driver call. An owner that
 * lives and does not let go (stopped in those few stores, or named by a user who wrote into the record) is
 * waited for HAMI_LOCK_PATIENCE_MS: then a charge is refused, and a release counts in the slot alone.
 *
 * Opened by record.h; read without the lock by glance.h. Locks held on entry: none. Thread-safe, not
 * async-signal-safe. A forked child takes a slot of its own at its next charge.
 */
#ifndef HAMI_REGION_H
#define HAMI_REGION_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hami_contract.h"
#include "region/descriptor.h"

#ifndef HAMI_LOCK_PATIENCE_MS
#define HAMI_LOCK_PATIENCE_MS 10000
#endif

struct hami_region {
	const struct hami_limits *job;  /* mapped; NULL until opened */
	const struct hami_limits *step; /* mapped; may equal job */
	struct hami_usage_file *usage;  /* mapped, shared with the job's processes */
	pthread_mutex_t join;           /* guards the slot while it is taken */
	struct hami_descriptor file;    /* the usage file */
	int32_t slot;                   /* own slot, -1 before the first charge */
	int64_t move_waits;             /* since when another process moves; 0: none does */
};

/* What a program is told about its slice. Bytes. */
struct hami_view {
	uint64_t limit;
	uint64_t used;
	uint64_t free;
};

/*
 * Makes this process one of those that use the slice, until it ends. 0, also when it is one; -EDQUOT when as many others
 * use it as may, -EUSERS when no slot is left, -ETIMEDOUT when a live process does not let go of the record, another
 * -errno.
 */
int hami_region_join(struct hami_region *region);

/* Joins, then charges `bytes`. 0, or an error of hami_region_join, or -ENOMEM when a limit forbids it. */
int hami_region_charge(struct hami_region *region, uint64_t bytes);

/* Gives back what an earlier charge took, and no more than this process holds. */
void hami_region_release(struct hami_region *region, uint64_t bytes);

/* Fills *view with what the slice has and what is left of it. */
void hami_region_view(struct hami_region *region, struct hami_view *view);

/* Returns the bytes held by the job's live process `pid`, or UINT64_MAX when it is none of the job's. */
uint64_t hami_region_of_pid(struct hami_region *region, uint32_t pid);

/*
 * Begins to move memory to the host, at `now` (ns of one clock); false while another process of the job does, for a minute at
 * most. So each finds what room the host has left after those before it. A process's end is the end of its move.
 */
bool hami_region_move_begin(struct hami_region *region, int64_t now);
void hami_region_move_end(struct hami_region *region);

/* For a forked child: forgets the parent's slot, so that the next charge takes one of the child's own. */
void hami_region_forget_slot(struct hami_region *region);

#endif
