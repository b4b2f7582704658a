/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budgets of the GPU's time in the usage record: one of the job and one of the step, which all their
 * processes fill and use together.
 *
 * No lock, so that nobody waits for a process that was stopped. A budget, and whether its processes are paused, is one
 * word that changes in one step: a process that dies at any moment loses at most what it had just measured, and one
 * that was stopped and goes on finds what the others have made of it. Thread-safe, async-signal-safe.
 */
#ifndef HAMI_REGION_BUDGET_H
#define HAMI_REGION_BUDGET_H
#include "region/region.h"

struct hami_spent {
	int64_t since; /* of `clock`: this process's last count */
	int64_t used;  /* by this process since then, ns */
	int64_t costs; /* to others besides, who give way to it, ns: no work of this process, but taken from its budgets */
	bool contended; /* others interrupted it lately, or it waited for them (limits/meter.h) */
	bool in_step;   /* the tenant works in step, and uses `duty` permille of its open time */
	uint32_t duty;
	bool has_floor; /* the job's cap is what a floor leaves it: each time it is reached is counted */
	uint32_t job_cap, step_cap; /* percent */
	int64_t (*clock)(void);     /* hami_clock_steady, or a test's */
};

/*
 * Takes what this process has used from both budgets; a cap of 100 percent has none. Returns whether this process
 * must be paused; sets *wait to how long that cannot change at the earliest, ns (INT64_MAX: as long as the caps stay).
 */
bool hami_region_spend(struct hami_region *region, const struct hami_spent *spent, int64_t *wait);

#endif
