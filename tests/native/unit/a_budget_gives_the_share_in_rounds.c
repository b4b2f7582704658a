/* SPDX-License-Identifier: Apache-2.0 */
/* The budget of a cap (arbitration/budget.h), and terms that root would not write, by a clock of their own. */
#include <stdbool.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "arbitration/terms.h"
#include "check.h"

#define STEP 100000ll /* ns */

struct tenant {
	int64_t full_at, now, credit;
	bool shut, contended;
};

static void go_on(struct tenant *t, int64_t elapsed, int64_t used, uint32_t percent)
{
	const struct hami_count count = {.since = t->now, .now = t->now + elapsed, .used = used};
	t->now = count.now;
	t->full_at = hami_budget_use(t->full_at, &count, percent);
	t->credit = hami_budget_credit(t->full_at, t->now, false, percent);
	t->shut = hami_budget_shut(t->credit, t->shut, t->contended, percent);
	CHECK(hami_budget_wait(t->credit, t->shut, t->contended, percent) >= 0);
}

/*
 * One that wants everything: its share over ten rounds, in one piece each; where pauses take effect at once, as here,
 * a piece is shorter by what the calls are early.
 */
static void wants_everything(uint32_t percent)
{
	struct tenant t = {0};
	int64_t open = 0;
	int pieces = 0;
	for (int64_t at = 0; at < 10 * HAMI_ROUND_NS; at += STEP) {
		bool before = t.shut;
		open += before ? 0 : STEP;
		go_on(&t, STEP, before ? 0 : STEP, percent);
		pieces += before && !t.shut;
	}
	CHECK(open >= HAMI_ROUND_NS / 10 * percent - HAMI_ROUND_NS / 4);
	CHECK(open <= HAMI_ROUND_NS / 10 * percent + HAMI_ROUND_NS / 2);
	CHECK(pieces <= (hami_budget_half(percent) > 4 * HAMI_PAUSE_LEAD_NS ? 13 : 22));
}

/* One that uses a little less than its share is never shut. */
static void wants_less(uint32_t percent)
{
	struct tenant t = {0};
	for (int i = 0; i < 10000; i++) {
		go_on(&t, STEP, STEP * percent / 100, percent);
		CHECK(!t.shut);
	}
}

/* One that others interrupt may owe three times as much before it is shut, and gets no more in the long run. */
static void is_interrupted(uint32_t percent)
{
	struct tenant t = {.contended = true};
	int64_t open = 0, first = 0;
	for (int64_t at = 0; at < 100 * HAMI_ROUND_NS; at += STEP) {
		bool before = t.shut;
		open += before ? 0 : STEP;
		go_on(&t, STEP, before ? 0 : STEP, percent);
		first = first || !t.shut ? first : at + STEP;
	}
	CHECK(first * (100 - percent) / 100 >= 3 * hami_budget_half(percent));
	CHECK(open <= HAMI_ROUND_NS * percent + 4 * hami_budget_half(percent) + STEP);
}

/* Whatever stands in the record, the time shut ends. */
static void owes_anything(uint32_t percent)
{
	const int64_t words[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		for (size_t j = 0; j < sizeof words / sizeof *words; j++)
			for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
				struct tenant t = {.full_at = words[i], .shut = true, .contended = k % 2};
				CHECK(hami_budget_wait(words[i], true, k % 2, percent) <= HAMI_SHUT_NS_MOST);
				go_on(&t, words[j] & INT64_MAX >> 1, words[k], percent);
				int64_t wait = hami_budget_wait(t.credit, t.shut, t.contended, percent);
				CHECK(wait <= HAMI_SHUT_NS_MOST);
			}
}

/* A part of a turn, and a wait for a request, of any numbers: bounded. */
static void strange_parts(const struct hami_terms *t, uint32_t rank, uint32_t count)
{
	const int64_t now = 1700000000123456789, times[] = {INT64_MIN, -1, 0, 1, 4999999, 5000000, INT64_MAX};
	const size_t n = sizeof times / sizeof *times;
	const struct hami_part part = {.rank = rank, .count = count};
	int64_t until;
	hami_part_open(t, &part, now, &until);
	CHECK(until > now && (until == INT64_MAX || until <= now + 16 * HAMI_ROUND_NS));
	for (size_t i = 0; i < n * n * n; i++) {
		const struct hami_visit visit = {.stay = times[i / n % n], .usual = times[i / n / n]};
		const int64_t late = times[i % n];
		bool waits = hami_terms_waits(t, i % 2, late, &visit);
		CHECK(!waits || (t->latency_others && !t->latency && late < 5000000 && visit.stay > 0));
	}
}

/* What root would not write: no crash, and a cap between 0 and 100. */
static void strange_terms(void)
{
	const uint32_t words[] = {0,   1,    9,    77,    100,         101,       200,
				  999, 1000, 5000, 70000, 4000000000u, UINT32_MAX};
	const size_t n = sizeof words / sizeof *words;
	for (size_t i = 0; i < n * n; i++) {
		struct hami_limits r = {.cores_percent = words[i / n],
					.policy = words[i % n] % 4,
					.latency = i % 2,
					.floor_percent = words[i / n],
					.latency_others = words[i % n] % 2,
					.latency_above = words[i / n],
					.turn_begin_permille = words[i / n],
					.turn_length_permille = words[i % n],
					.others_least_cores = i % 2 ? words[i % n] : 0,
					.latency_cores = words[i % n],
					.slice_us = i % 3 ? 0 : words[i / n]};
		struct hami_terms t = hami_terms_read(&r, &r);
		const int64_t round = t.latency ? HAMI_LEFT_EVERY_NS : HAMI_ROUND_NS;
		t.greedy = i % 5 == 0;
		uint32_t cap = hami_terms_cap(&t), slice = hami_terms_timeslice_us(&t, words[i % n]);
		CHECK(cap >= 1 && cap <= 100);
		CHECK(t.slice_us == r.slice_us);
		CHECK(slice <= HAMI_CLASS_SLICE_US_MAX);
		uint32_t share = hami_terms_latency_share(&t);
		CHECK(share >= 1 && share <= t.cores_percent);
		int64_t now = 1700000000123456789, until;
		hami_terms_turn(&t, words[i % n] % 2, (int64_t)words[i / n] - 1, now, &until);
		CHECK(until > now && (until == INT64_MAX || until <= now + round));
		strange_parts(&t, words[i / n], words[i % n]);
		strange_parts(&t, words[i % n] / 2, words[(i + 5) % n]);
	}
}

/* A latency-critical job leaves its floor to others by being paused; not where MPS keeps its time, nor in an instance
 * that is nobody else's. */
static void floors(void)
{
	for (uint32_t mode = HAMI_MODE_SHARE; mode <= HAMI_MODE_MIG; mode++) {
		struct hami_limits r = {.mode = mode,
					.policy = HAMI_POLICY_NONE,
					.cores_percent = 50,
					.latency = 1,
					.floor_percent = 5};
		struct hami_terms t = hami_terms_read(&r, &r);
		CHECK(hami_terms_cap(&t) == (mode == HAMI_MODE_SHARE ? 95 : 100));
	}
}

int main(void)
{
	for (uint32_t percent = 1; percent < 100; percent++) {
		wants_everything(percent);
		wants_less(percent);
		is_interrupted(percent);
		owes_anything(percent);
	}
	strange_terms();
	floors();
	return 0;
}
