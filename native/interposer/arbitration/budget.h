/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of a cap: credit in ns of the GPU's time. It grows with the clock at `percent`, measured use takes
 * from it, and it lies between +half and what is owed. A tenant whose credit falls to -half is shut, and opens
 * again at +half. So:
 *
 *	one that wants everything runs percent of each HAMI_ROUND_NS, in one piece;
 *	one that uses less than percent stays near +half and is never shut;
 *	after idling the first piece is as long as any other, and the pause after it longer: what was saved up, +half, is
 *	given back, so that a burst has its share and no more. Not where others interrupt, nor in step.
 *
 * One that others interrupt, or where rounds are long (terms.h) that waits for others (`contended`), is shut at -3 half: the
 * GPU gives it its turns, which may be uneven, and most such tenants get no more than their share anyway.
 *
 * Pure: no clock, no system call, no state of its own. Times in ns.
 */
#ifndef HAMI_BUDGET_H
#define HAMI_BUDGET_H
#include <stdbool.h>
#include <stdint.h>

/*
 * The common round. It divides 100 ms, so that any window of 100 ms holds the same share, and the calls that
 * pause and resume (0.3 to 0.7 ms on an H200) are small against it.
 */
#define HAMI_ROUND_NS 50000000ll
/* A pause takes effect about so long after its call begins, and a resume. */
#define HAMI_PAUSE_LEAD_NS 500000ll
/*
 * `several` processes that share a budget count so often each. While one of them uses the GPU, the budget grows, and
 * what it used is taken at its next count; so that no growth is lost at the upper end, so much more credit than +half
 * can be saved as grows meanwhile.
 */
#define HAMI_COUNT_NS_SEVERAL 5000000ll
/* Nobody is shut for longer, however much is owed. */
#define HAMI_SHUT_NS_MOST 500000000ll

/* Returns half of the credit that may be saved up or owed in ordinary use; `percent` 1 to 99. */
int64_t hami_budget_half(uint32_t percent);
/* What a process used between its last count and this one. */
struct hami_count {
	int64_t since, now; /* of a clock that does not step; 0 or more */
	int64_t used;
	bool several; /* processes use the budget */
};

/*
 * The budget is kept as one number, `full_at`: when it will be full, at +half, if nothing is used until then; so that
 * it grows by itself, and changes in one step. Returns it after a count: what was used since the last one fills up
 * later what was full then. Any number that it cannot be is a user's own, and the nearest one is taken.
 */
int64_t hami_budget_use(int64_t full_at, const struct hami_count *count, uint32_t percent);
/* Returns the credit at `now`. */
int64_t hami_budget_credit(int64_t full_at, int64_t now, bool several, uint32_t percent);
/* Returns whether nothing was used for a round before the count, with a full budget. */
bool hami_budget_rested(int64_t full_at, const struct hami_count *count);
/* Returns `full_at` without the credit that was saved up before a tenant that had rested was shut for the first time. */
int64_t hami_budget_repaid(int64_t full_at, int64_t now, uint32_t percent);
/* Returns whether the tenant is shut at this credit, if it was `shut` before. */
bool hami_budget_shut(int64_t credit, bool shut, bool contended, uint32_t percent);
/* Returns how long it takes at least until that can change, ns: 0 or more. */
int64_t hami_budget_wait(int64_t credit, bool shut, bool contended, uint32_t percent);

/*
 * A tenant that works in step (terms.h) opens at a common instant, and is shut when its budget says so; one with more of
 * the time is shut at a common instant, and opens when its budget says so: what its slices measured differently then
 * changes the longer piece. Returns whether it is the latter.
 */
bool hami_budget_shuts_in_step(uint32_t percent);
/*
 * Returns what is added to its credit where its budget decides. `duty`: permille of its open time that it uses. What
 * waits for an instant is decided long before, so that what is used or seen late costs no round. One that opens in step
 * and uses less than all of the time is shut before it owes as much as others, after ROUND x share / duty, so that it is
 * ready at the next instant.
 */
int64_t hami_budget_in_step(bool shut, uint32_t duty, uint32_t percent);

#endif
