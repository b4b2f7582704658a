/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budgets of the GPU's time in the usage record: one of the job and one of the step, which all their
 * processes fill and use together.
 *
 * No lock, so that nobody waits for a process that was stopped: each word changes atomically, and a process that
 * dies between two of them loses at most what it had just measured. Thread-safe, async-signal-safe.
 */
#ifndef HAMI_REGION_BUDGET_H
#define HAMI_REGION_BUDGET_H
#include "region/region.h"

struct hami_spent {
	int64_t used;   /* by this process since the last time, ns */
	bool contended; /* others interrupted it lately */
	bool has_floor; /* the job's cap is what a floor leaves it: each time it is reached is counted */
	uint32_t job_cap, step_cap; /* percent */
};

/*
 * Takes what this process has used from both budgets, which grow up to `now` (ns of hami_clock_steady());
 * a cap of 100 percent has none. Returns whether this process must be paused; sets *wait to how long that cannot
 * change at the earliest, ns (INT64_MAX: as long as the caps stay).
 */
bool hami_region_spend(struct hami_region *region, int64_t now, const struct hami_spent *spent,
		       int64_t *wait);

#endif
