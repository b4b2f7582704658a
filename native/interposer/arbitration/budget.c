/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/budget.h"

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

/* Returns the credit, or the nearest that there can be: a user may have written any number. */
static int64_t bounded(int64_t credit, bool several, uint32_t percent)
{
	const int64_t half = hami_budget_half(percent), least = half - HAMI_SHUT_NS_MOST * percent / 100;
	const int64_t most = half + (several ? HAMI_COUNT_NS_SEVERAL * percent / 100 : 0);
	return credit < least ? least : credit > most ? most : credit;
}

int64_t hami_budget_after(int64_t credit, int64_t elapsed, int64_t used, bool several, uint32_t percent)
{
	const int64_t second = 1000000000;
	percent = within(percent);
	/* A clock that stepped, or numbers that a user wrote into the record. */
	elapsed = elapsed < 0 ? 0 : elapsed > second ? second : elapsed;
	used = used < 0 ? 0 : used > second ? second : used;
	credit = bounded(credit, several, percent) + elapsed * percent / 100 - used;
	return bounded(credit, several, percent);
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
	credit = bounded(credit, true, percent);
	int64_t left = shut ? highest(percent) - credit : credit - lowest(contended, percent);
	return left <= 0 ? 0 : left * 100 / (shut ? percent : 100 - percent);
}
