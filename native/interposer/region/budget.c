/* SPDX-License-Identifier: Apache-2.0 */
#include "region/budget.h"

#include "arbitration/budget.h"
#include "region/glance.h"

struct words {
	uint64_t *credit, *at;
	uint32_t *shut;
	uint32_t cap;
	bool several; /* processes use it */
	bool contended;
};

/*
 * Moves the clock of a budget up to `now`. Returns by how much, which is this caller's to add: whoever moves it from
 * one time to another adds what lies between, so that no time is added twice.
 *
 * The clock may be ahead of `now`: of a process that was stopped since it read that. One ahead of a time that is read
 * after it is a user's own number.
 */
static int64_t advance(const struct words *w, int64_t now, int64_t (*clock)(void))
{
	uint64_t at = __atomic_load_n(w->at, __ATOMIC_ACQUIRE), full = 0;
	if (at >= (uint64_t)now) {
		now = clock();
		if (at <= (uint64_t)now)
			return 0;
	}
	if (!at) /* nobody has used it yet */
		__atomic_compare_exchange_n(w->credit, &full, (uint64_t)hami_budget_half(w->cap), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	if (!__atomic_compare_exchange_n(w->at, &at, (uint64_t)now, false, __ATOMIC_RELEASE,
					 __ATOMIC_RELAXED))
		return 0; /* another process adds it */
	return at && at < (uint64_t)now ? now - (int64_t)at : 0;
}

static bool spend(const struct words *w, int64_t now, const struct hami_spent *spent, int64_t *wait)
{
	if (w->cap >= 100)
		return false;
	int64_t elapsed = advance(w, now, spent->clock), after;
	uint64_t credit = __atomic_load_n(w->credit, __ATOMIC_RELAXED);
	do {
		after = hami_budget_after((int64_t)credit, elapsed, spent->used, w->several, w->cap);
	} while (!__atomic_compare_exchange_n(w->credit, &credit, (uint64_t)after, false, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	bool shut = hami_budget_shut(after, __atomic_load_n(w->shut, __ATOMIC_RELAXED) != 0, w->contended,
				     w->cap);
	__atomic_store_n(w->shut, shut, __ATOMIC_RELAXED);
	int64_t until = hami_budget_wait(after, shut, w->contended, w->cap);
	*wait = until < *wait ? until : *wait;
	return shut;
}

bool hami_region_spend(struct hami_region *region, int64_t now, const struct hami_spent *spent, int64_t *wait)
{
	const int64_t used = spent->used;
	struct hami_usage_file *u = region->usage;
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	*wait = INT64_MAX;
	if (slot < 0)
		return false;
	__atomic_fetch_add(&u->slots[slot].gpu_busy_ns, (uint64_t)(used > 0 ? used : 0), __ATOMIC_RELAXED);
	const struct words job = {.credit = &u->head.time_credit,
				  .at = &u->head.time_credit_at,
				  .shut = &u->head.time_shut,
				  .cap = spent->job_cap,
				  .several = hami_region_processes(region) > 1,
				  .contended = spent->contended};
	bool shut = spend(&job, now, spent, wait);
	uint32_t row = __atomic_load_n(&u->slots[slot].step_row, __ATOMIC_RELAXED);
	if (row >= HAMI_USAGE_STEP_COUNT)
		return shut; /* a user's own number */
	struct hami_usage_step *s = &u->steps[row];
	const struct words step = {.credit = &s->time_credit,
				   .at = &s->time_credit_at,
				   .shut = &s->time_shut,
				   .cap = spent->step_cap,
				   .several = hami_region_step_processes(region) > 1,
				   .contended = spent->contended};
	int64_t of_step = INT64_MAX;
	bool step_shut = spend(&step, now, spent, &of_step);
	if (shut && step_shut)
		*wait = of_step > *wait ? of_step : *wait;
	else if (step_shut)
		*wait = of_step;
	else if (!shut)
		*wait = of_step < *wait ? of_step : *wait;
	return shut || step_shut;
}
