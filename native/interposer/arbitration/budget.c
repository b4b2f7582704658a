/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/budget.h"

/*
 * Open, the credit of a tenant that wants everything falls by (1 - share) a ns; shut, it grows by share. With
 * 2 x half = ROUND x share x (1 - share) it is open for ROUND x share and shut for the rest of each round.
 */
int64_t hami_budget_half(uint32_t percent)
{
	return HAMI_ROUND_NS * percent * (100 - percent) / 20000;
}

int64_t hami_budget_after(int64_t credit, int64_t elapsed, int64_t used, uint32_t percent)
{
	const int64_t second = 1000000000, half = hami_budget_half(percent);
	const int64_t least = half - HAMI_SHUT_NS_MOST * percent / 100;
	/* A clock that stepped, or numbers that a user wrote into the record. */
	elapsed = elapsed < 0 ? 0 : elapsed > second ? second : elapsed;
	used = used < 0 ? 0 : used > second ? second : used;
	credit = credit < least ? least : credit > half ? half : credit;
	credit += elapsed * percent / 100 - used;
	return credit < least ? least : credit > half ? half : credit;
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
	return percent < 100 && (shut ? credit < highest(percent) : credit <= lowest(contended, percent));
}

int64_t hami_budget_wait(int64_t credit, bool shut, bool contended, uint32_t percent)
{
	if (percent >= 100)
		return INT64_MAX;
	int64_t left = shut ? highest(percent) - credit : credit - lowest(contended, percent);
	return left <= 0 ? 0 : left * 100 / (shut ? percent : 100 - percent);
}
