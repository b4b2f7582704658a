/* SPDX-License-Identifier: Apache-2.0 */
#include "region/budget.h"

#include "arbitration/budget.h"
#include "region/glance.h"

/* In the word: its processes are paused; it had rested, and was not paused since. */
#define SHUT 1ull
#define RESTED 2ull
#define FLAGS (SHUT | RESTED)

struct budget {
	uint64_t *word;
	uint32_t cap;
	bool several;   /* processes use it */
	uint64_t *hits; /* counts how often it shuts; NULL: nobody counts */
};

/* Returns the credit by which to decide. */
static int64_t deciding(const struct budget *b, int64_t credit, bool shut, const struct hami_spent *spent)
{
	return credit + (spent->in_step ? hami_budget_in_step(shut, spent->duty, b->cap) : 0);
}

static bool contended(const struct hami_spent *spent)
{
	return spent->contended && !spent->in_step;
}

/*
 * Returns the word after this process's use, and the credit that it leaves. The clock is read after the word: what is
 * further ahead of it than a budget can be is a user's own number, not another process's later look.
 */
static uint64_t next(const struct budget *b, uint64_t word, const struct hami_spent *spent, int64_t *credit)
{
	const struct hami_count count = {.since = spent->since,
					 .now = spent->clock(),
					 .used = spent->used + spent->costs,
					 .several = b->several};
	const int64_t before = (int64_t)(word & ~FLAGS);
	const bool was_shut = word & SHUT;
	const bool rested = word & RESTED || hami_budget_rested(before, &count);
	int64_t full_at = hami_budget_use(before, &count, b->cap);
	*credit = hami_budget_credit(full_at, count.now, b->several, b->cap);
	const bool shut =
		hami_budget_shut(deciding(b, *credit, was_shut, spent), was_shut, contended(spent), b->cap);
	if (shut && !was_shut && rested && !spent->contended && !spent->in_step) {
		full_at = hami_budget_repaid(full_at, count.now, b->cap);
		*credit = hami_budget_credit(full_at, count.now, b->several, b->cap);
	}
	return ((uint64_t)full_at & ~FLAGS) | (shut ? SHUT : 0) | (rested && !shut ? RESTED : 0);
}

static bool spend(const struct budget *b, const struct hami_spent *spent, int64_t *wait)
{
	if (b->cap >= 100)
		return false;
	int64_t credit;
	uint64_t before = __atomic_load_n(b->word, __ATOMIC_ACQUIRE), after;
	do {
		after = next(b, before, spent, &credit);
	} while (!__atomic_compare_exchange_n(b->word, &before, after, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_ACQUIRE));
	if (!(before & SHUT) && (after & SHUT) && b->hits)
		__atomic_fetch_add(b->hits, 1, __ATOMIC_RELAXED);
	int64_t until = hami_budget_wait(deciding(b, credit, after & SHUT, spent), after & SHUT,
					 contended(spent), b->cap);
	*wait = until < *wait ? until : *wait;
	return after & SHUT;
}

bool hami_region_spend(struct hami_region *region, const struct hami_spent *spent, int64_t *wait)
{
	const int64_t used = spent->used;
	struct hami_usage_file *u = region->usage;
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	*wait = INT64_MAX;
	if (slot < 0)
		return false;
	__atomic_fetch_add(&u->slots[slot].gpu_busy_ns, (uint64_t)(used > 0 ? used : 0), __ATOMIC_RELAXED);
	__atomic_fetch_add(&u->head.time_used, (uint64_t)(used > 0 ? used : 0), __ATOMIC_RELAXED);
	const struct budget job = {&u->head.time_full_at, spent->job_cap, hami_region_processes(region) > 1,
				   spent->has_floor ? &u->head.floor_hit_count : NULL};
	bool shut = spend(&job, spent, wait);
	uint32_t row = __atomic_load_n(&u->slots[slot].step_row, __ATOMIC_RELAXED);
	if (row >= HAMI_USAGE_STEP_COUNT)
		return shut; /* a user's own number */
	const struct budget step = {&u->steps[row].time_full_at, spent->step_cap,
				    hami_region_step_processes(region) > 1, NULL};
	int64_t of_step = INT64_MAX;
	bool step_shut = spend(&step, spent, &of_step);
	if (shut && step_shut)
		*wait = of_step > *wait ? of_step : *wait;
	else if (step_shut)
		*wait = of_step;
	else if (!shut)
		*wait = of_step < *wait ? of_step : *wait;
	return shut || step_shut;
}
