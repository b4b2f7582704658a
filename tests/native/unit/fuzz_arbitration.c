/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of arbitration/budget.h with any numbers, as a user may have written them into the record: no undefined
 * arithmetic, nobody is shut for longer than the most, and no credit beyond a full budget. Those of parts.h and of waiting
 * for requests (terms.h) too: who waits for a part looks again within a round, the context that is open is one of those
 * that there are, and no change is later than 5 ms.
 */
#include <stdint.h>
#include <string.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "arbitration/terms.h"
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct numbers {
	int64_t credit, full_at, used, since, now;
	uint32_t percent;
	uint8_t shut, contended, several;
	uint32_t turn_begin, turn_length, rank, count;
	int64_t late, stay, usual;
};

#define CHANGE_LATEST 5000000ll /* ns: of terms.c */
#define ROUNDS_MOST 16          /* of parts.c */

static void judge_turn(const struct numbers *n)
{
	const struct hami_terms terms = {.latency_others = n->contended & 1,
					 .latency = n->shut & 1,
					 .cores_percent = n->percent,
					 .policy = n->several & 1,
					 .others_least_percent = n->several >> 1,
					 .others_capped = n->several,
					 .turn_begin = n->turn_begin,
					 .turn_length = n->turn_length};
	const bool takes_turns = terms.latency_others && !terms.latency;
	const struct hami_part part = {.rank = n->rank, .count = n->count};
	const struct hami_visit visit = {.stay = n->stay, .usual = n->usual};
	const int64_t now = n->now & ((1ll << 62) - 1);
	int64_t until;
	bool open = hami_part_open(&terms, &part, now, &until);
	const int64_t longest = (takes_turns ? 1 : ROUNDS_MOST) * HAMI_ROUND_NS;
	CHECK(until > now && (until == INT64_MAX || until <= now + longest));
	CHECK(open || (part.count > 1 && (takes_turns || (!terms.latency && part.rank < part.count))));
	const uint32_t contexts = (uint32_t)n->used;
	const uint32_t context = hami_part_context(&terms, &part, contexts, now, &until);
	CHECK(until > now && (until == INT64_MAX || until <= now + HAMI_ROUND_NS));
	CHECK(context < contexts || (contexts == 0 && context == 0));
	CHECK(!hami_part_one_context(&terms, &part, contexts) || (contexts > 1 && !terms.latency));
	const uint32_t sharers = (uint32_t)n->late, together = hami_part_sharers(&terms, &part, sharers);
	CHECK(together <= sharers && (together == sharers || part.count > 1));
	const uint32_t filled = hami_part_filled(n->rank, n->stay, n->usual),
		       counts = hami_part_counts(filled);
	CHECK(n->stay < 0 || n->usual <= 0 || filled <= HAMI_PART_FULL);
	CHECK(counts <= HAMI_PART_FULL && (counts >= filled || filled > HAMI_PART_FULL));
	for (int opens = 0; opens < 2; opens++)
		CHECK(!hami_terms_waits(&terms, opens, n->late, &visit) ||
		      (takes_turns && n->late < CHANGE_LATEST && visit.stay > 0));
}

static void judge(const struct numbers *n)
{
	const bool shut = n->shut & 1, contended = n->contended & 1, several = n->several & 1,
		   capped = n->percent < 100;
	const int64_t half = hami_budget_half(n->percent);
	CHECK(half > 0 && half <= HAMI_ROUND_NS / 8);
	int64_t wait = hami_budget_wait(n->credit, shut, contended, n->percent);
	CHECK(wait >= 0 && (!capped || !shut || wait <= HAMI_SHUT_NS_MOST));
	CHECK(capped || !hami_budget_shut(n->credit, shut, contended, n->percent));
	const int64_t now = n->now & ((1ll << 62) - 1);
	struct hami_count count = {.since = n->since, .now = now, .used = n->used, .several = several};
	int64_t after = hami_budget_use(n->full_at, &count, n->percent);
	int64_t credit = hami_budget_credit(after, now, several, n->percent);
	CHECK(credit <= half + (several ? HAMI_COUNT_NS_SEVERAL : 0) && credit >= half - HAMI_SHUT_NS_MOST);
	count.used = 0;
	CHECK(hami_budget_use(after, &count, n->percent) == after);
	if (!capped || !hami_budget_shut(credit, true, contended, n->percent))
		return;
	wait = hami_budget_wait(credit, true, contended, n->percent) + 200; /* whole numbers */
	credit = hami_budget_credit(after, now + wait, several, n->percent);
	CHECK(!hami_budget_shut(credit, true, contended, n->percent));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
	const size_t count = sizeof extremes / sizeof *extremes;
	struct numbers n = {0};
	memcpy(&n, data, size < sizeof n ? size : sizeof n);
	judge(&n);
	judge_turn(&n);
	for (size_t i = 0; i < count * count; i++) {
		n.credit = extremes[i % count];
		n.full_at = extremes[i / count];
		n.since = extremes[(i + n.several) % count];
		n.used = extremes[(i + n.shut) % count];
		n.late = i % 2 ? CHANGE_LATEST / 2 : extremes[i % count];
		n.stay = extremes[i / count];
		n.usual = extremes[(i + n.shut) % count];
		judge(&n);
		judge_turn(&n);
	}
	return 0;
}
