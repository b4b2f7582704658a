/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budgets of the GPU's time in the usage record: one of the job and one of the step, which all their
 * processes fill and use together.
 *
 * No lock, so that nobody waits for a process that was stopped: each word changes atomically. A process that dies
 * between two of them loses at most what it had just measured; one that is stopped there and goes on later adds
 * what it has not added yet, and what it had read of the clock moves nothing back. Thread-safe, async-signal-safe.
 */
#ifndef HAMI_REGION_BUDGET_H
#define HAMI_REGION_BUDGET_H
#include "region/region.h"

struct hami_spent {
	int64_t used;               /* by this process since the last time, ns */
	bool contended;             /* others interrupted it lately */
	uint32_t job_cap, step_cap; /* percent */
	int64_t (*clock)(void);     /* hami_clock_steady, or a test's */
};

/*
 * Takes what this process has used from both budgets, which grow up to `now` (ns, read of `clock` before);
 * a cap of 100 percent has none. Returns whether this process must be paused; sets *wait to how long that cannot
 * change at the earliest, ns (INT64_MAX: as long as the caps stay).
 */
bool hami_region_spend(struct hami_region *region, int64_t now, const struct hami_spent *spent,
		       int64_t *wait);

#endif
