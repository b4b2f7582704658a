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
 * Locks held on entry: none. Thread-safe unless noted. Not async-signal-safe. A forked child calls
 * hami_region_forked() first (pthread_atfork) and takes a slot of its own at its next charge.
 */
#ifndef HAMI_REGION_H
#define HAMI_REGION_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hami_contract.h"

#ifndef HAMI_LOCK_PATIENCE_MS
#define HAMI_LOCK_PATIENCE_MS 10000
#endif

struct hami_region {
	const struct hami_limits *job;  /* mapped; NULL until opened */
	const struct hami_limits *step; /* mapped; may equal job */
	struct hami_usage_file *usage;  /* mapped, shared with the job's processes */
	pthread_mutex_t join;           /* guards the three below while a slot is taken */
	int fd;                         /* usage file; its description holds the slot's lock; -1 after fork */
	int32_t slot;                   /* own slot, -1 before the first charge */
	char usage_path[256];
};

/* What a program is told about its slice. Bytes. */
struct hami_view {
	uint64_t limit;
	uint64_t used;
	uint64_t free;
};

/*
 * Opens the limits record at `limits_path` and the job's records beside it. 0, or -errno: -EPERM when a
 * limits record is not root's own, or of another user's or job's, -EPROTO when a record is of another version
 * or damaged. Not thread-safe.
 */
int hami_region_open(struct hami_region *region, const char *limits_path);

/* 0 when `bytes` were charged; -ENOMEM when a limit forbids it; -EUSERS when no slot is left;
 * -ETIMEDOUT when a live process does not let go of the record; -errno otherwise. */
int hami_region_charge(struct hami_region *region, uint64_t bytes);

/* Gives back what an earlier charge took. */
void hami_region_release(struct hami_region *region, uint64_t bytes);

void hami_region_view(struct hami_region *region, struct hami_view *view);

/* Bytes held by the job's live process `pid`, or UINT64_MAX when it is none of the job's. */
uint64_t hami_region_of_pid(struct hami_region *region, uint32_t pid);

/* Bytes that this process holds. */
uint64_t hami_region_own(struct hami_region *region);

/*
 * Where this step's window begins in the common period, percent: the steps of a job that live at the same
 * time share the job's window one after the other, as far as it reaches. A glance without the lock: a stale
 * answer costs a period.
 */
uint32_t hami_region_phase(struct hami_region *region);

/* Counts a request that the limits allowed and the driver refused. No lock. */
void hami_region_lacking(struct hami_region *region);

/* Adds to this process's GPU time and time held back, ns. No lock. */
void hami_region_add_time(struct hami_region *region, uint64_t busy_ns, uint64_t throttled_ns);

/* In a forked child, before anything else: forgets the parent's slot. */
void hami_region_forked(struct hami_region *region);

#endif
