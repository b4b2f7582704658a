/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of arbitration/budget.h with any numbers, as a user may have written them into the record: no undefined
 * arithmetic, nobody is shut for longer than the most, and no credit beyond a full budget.
 */
#include <stdint.h>
#include <string.h>

#include "arbitration/budget.h"
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct numbers {
	int64_t credit, full_at, used, since, now;
	uint32_t percent;
	uint8_t shut, contended, several;
};

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
	for (size_t i = 0; i < count * count; i++) {
		n.credit = extremes[i % count];
		n.full_at = extremes[i / count];
		n.since = extremes[(i + n.several) % count];
		n.used = extremes[(i + n.shut) % count];
		judge(&n);
	}
	return 0;
}
