/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/budget.h"

#define SHUTS_IN_STEP 60u /* percent, from which on; by simulation, tests/native/test_slices_in_step.py */
#define USED_NS_MOST 86400000000000ll /* of one count, so that nothing overflows */

/* Returns the share, or the nearest that a budget can keep. */
static uint32_t within(uint32_t percent)
{
	return percent < 1 ? 1 : percent > 99 ? 99 : percent;
}

/*
 * Open, the credit of a tenant that wants everything falls by (1 - share) a ns; shut, it grows by share. With
 * 2 x half = ROUND x share x (1 - share) it is open for ROUND x share and shut for the rest of each round.
 */
int64_t hami_budget_half(uint32_t percent)
{
	percent = within(percent);
	return HAMI_ROUND_NS * percent * (100 - percent) / 20000;
}

/* Returns when the budget is full, between two times: a user may have written any number. */
static int64_t between(int64_t least, int64_t full_at, int64_t most)
{
	return full_at < least ? least : full_at > most ? most : full_at;
}

int64_t hami_budget_use(int64_t full_at, const struct hami_count *count, uint32_t percent)
{
	const int64_t now = count->now, longest = now + HAMI_SHUT_NS_MOST;
	int64_t since = between(0, count->since, now), used = between(0, count->used, USED_NS_MOST);
	if (count->several && since > now - HAMI_COUNT_NS_SEVERAL)
		since = now - HAMI_COUNT_NS_SEVERAL;
	full_at = between(since, full_at, longest) + used * 100 / within(percent);
	return full_at < longest ? full_at : longest;
}

bool hami_budget_rested(int64_t full_at, const struct hami_count *count)
{
	return between(0, full_at, INT64_MAX - HAMI_ROUND_NS) + HAMI_ROUND_NS <= count->since;
}

int64_t hami_budget_repaid(int64_t full_at, int64_t now, uint32_t percent)
{
	const struct hami_count saved = {.since = now, .now = now, .used = hami_budget_half(percent)};
	return hami_budget_use(full_at, &saved, percent);
}

int64_t hami_budget_credit(int64_t full_at, int64_t now, bool several, uint32_t percent)
{
	const int64_t least = now - (several ? HAMI_COUNT_NS_SEVERAL : 0);
	percent = within(percent);
	full_at = between(least, full_at, now + HAMI_SHUT_NS_MOST);
	return hami_budget_half(percent) - (full_at - now) * percent / 100;
}

/* Returns by how much earlier a call begins, in credit that changes by `percent` of the clock. */
static int64_t lead(int64_t half, uint32_t percent)
{
	int64_t whole = HAMI_PAUSE_LEAD_NS * percent / 100;
	return whole < half / 2 ? whole : half / 2;
}

/* Return the credit at which an open tenant is shut, and at which a shut one opens. */
static int64_t lowest(bool contended, uint32_t percent)
{
	int64_t half = hami_budget_half(percent);
	return -half * (contended ? 3 : 1) + lead(half, 100 - percent);
}

static int64_t highest(uint32_t percent)
{
	int64_t half = hami_budget_half(percent);
	return half - lead(half, percent);
}

bool hami_budget_shut(int64_t credit, bool shut, bool contended, uint32_t percent)
{
	if (percent >= 100)
		return false;
	percent = within(percent);
	return shut ? credit < highest(percent) : credit <= lowest(contended, percent);
}

int64_t hami_budget_wait(int64_t credit, bool shut, bool contended, uint32_t percent)
{
	if (percent >= 100)
		return INT64_MAX;
	percent = within(percent);
	const int64_t least = hami_budget_half(percent) - HAMI_SHUT_NS_MOST * percent / 100;
	const int64_t most = hami_budget_half(percent) + HAMI_COUNT_NS_SEVERAL;
	credit = credit < least ? least : credit > most ? most : credit;
	int64_t left = shut ? highest(percent) - credit : credit - lowest(contended, percent);
	return left <= 0 ? 0 : left * 100 / (shut ? percent : 100 - percent);
}

bool hami_budget_shuts_in_step(uint32_t percent)
{
	return percent >= SHUTS_IN_STEP;
}

int64_t hami_budget_in_step(bool shut, uint32_t duty, uint32_t percent)
{
	percent = within(percent);
	const int64_t early = hami_budget_half(percent) * 3 / 2;
	if (hami_budget_shuts_in_step(percent))
		return shut ? 0 : -early;
	if (shut)
		return early;
	if (duty >= 1000 || duty <= 10 * percent + (100 - percent))
		return 0; /* all of the time, or hardly more than its share */
	return -(HAMI_ROUND_NS * percent * percent / 10000 * (1000 - duty) / duty);
}
