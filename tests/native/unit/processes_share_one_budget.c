/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budgets in the usage record (region/budget.h): a job of 50 percent with a step of 20, by the time that
 * this program says. What a user may have written there delays his own job, for half a second at most. argv[1] is the
 * step's limits record.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arbitration/budget.h"
#include "check.h"
#include "region/budget.h"
#include "region/record.h"

#define MS 1000000ll
#define SPENT(ns, job, step)                                                                                 \
	((struct hami_spent){.used = (ns), .job_cap = (job), .step_cap = (step), .clock = read_now})

static struct hami_region region;
static int64_t now = 1000000 * MS;

static int64_t read_now(void)
{
	return now;
}

/* Uses what it can in `span` ns, looking each ms; returns what it used. */
static int64_t run(int64_t span, uint32_t job_cap, uint32_t step_cap)
{
	int64_t used = 0, last = 0, wait;
	for (int64_t end = now + span; now < end; now += MS) {
		bool shut = hami_region_spend(&region, now, &SPENT(last, job_cap, step_cap), &wait);
		CHECK(wait >= 0);
		last = shut ? 0 : MS;
		used += last;
	}
	return used;
}

static bool near(int64_t got, int64_t wanted)
{
	return got > wanted - 30 * MS && got < wanted + 30 * MS;
}

static void caps_hold(void)
{
	CHECK(near(run(2000 * MS, 50, 100), 1000 * MS));
	CHECK(near(run(2000 * MS, 50, 20), 400 * MS)); /* the smaller one */
	CHECK(run(1000 * MS, 100, 100) == 1000 * MS);
}

/* Two processes that each use the GPU when they may: what the second uses is missed by the first. */
static void the_sum_holds(void)
{
	int64_t used = 0, wait, other;
	run(1000 * MS, 50, 100);
	for (int i = 0; i < 2000; i++, now += MS) {
		bool shut = hami_region_spend(&region, now, &SPENT(0, 50, 100), &wait);
		if (shut)
			continue;
		used += MS;
		pid_t pid = fork(); /* as another process does it */
		CHECK(pid >= 0);
		if (!pid) {
			hami_region_spend(&region, now, &SPENT(MS, 50, 100), &other);
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	CHECK(near(used, 1000 * MS));
}

/* One that was stopped since it read the clock: its time is past, the others' is not, and nothing is filled up. */
static void a_stale_look_adds_nothing(void)
{
	int64_t wait, stale = now;
	run(3000 * MS, 50, 100); /* meanwhile the others go on */
	while (!hami_region_spend(&region, now, &SPENT(MS, 50, 100), &wait))
		now += MS;
	uint64_t credit = region.usage->head.time_credit, at = region.usage->head.time_credit_at;
	CHECK(hami_region_spend(&region, stale, &SPENT(0, 50, 100), &wait));
	CHECK(region.usage->head.time_credit == credit && region.usage->head.time_credit_at == at);
}

static int64_t read_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

enum { LOOKS = 20000, RACERS = 4 };

static void *race(void *unused)
{
	int64_t wait;
	struct hami_spent nothing = {.job_cap = 1, .step_cap = 100, .clock = read_clock};
	for (int i = 0; i < LOOKS; i++)
		hami_region_spend(&region, read_clock(), &nothing, &wait);
	return unused;
}

/* Many at once add the time that passed: neither more nor less, but for parts of a ns. */
static void time_is_added_once(void)
{
	struct hami_usage *u = &region.usage->head;
	pthread_t racers[RACERS];
	const int64_t owed = -4 * MS, begin = read_clock();
	u->time_credit = (uint64_t)owed;
	u->time_credit_at = (uint64_t)begin;
	for (int i = 0; i < RACERS; i++)
		CHECK(pthread_create(&racers[i], NULL, race, NULL) == 0);
	for (int i = 0; i < RACERS; i++)
		CHECK(pthread_join(racers[i], NULL) == 0);
	int64_t added = (int64_t)u->time_credit - owed, passed = (int64_t)u->time_credit_at - begin;
	CHECK(added <= passed / 100);
	CHECK(added >= passed / 100 - RACERS * LOOKS || (int64_t)u->time_credit == hami_budget_half(1));
	u->time_credit_at = 0; /* back to the time that this program says */
}

static void nonsense(uint64_t credit, uint64_t at, uint32_t shut, uint32_t row)
{
	struct hami_usage_file *u = region.usage;
	uint32_t *own_row = &u->slots[region.slot].step_row, before = *own_row;
	struct hami_usage_step *s = &u->steps[before];
	u->head.time_credit = s->time_credit = credit;
	u->head.time_credit_at = s->time_credit_at = at;
	u->head.time_shut = s->time_shut = shut;
	*own_row = row;
	int64_t wait;
	for (int i = 0; i < 10; i++, now += MS)
		hami_region_spend(&region, now, &SPENT(MS, 50, 20), &wait);
	*own_row = before;
	int64_t begun = now;
	while (hami_region_spend(&region, now, &SPENT(0, 50, 20), &wait)) {
		now += MS;
		CHECK(now - begun <= HAMI_SHUT_NS_MOST);
	}
	run(4000 * MS, 50, 20); /* and then the caps hold again */
	CHECK(near(run(2000 * MS, 50, 20), 400 * MS));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	CHECK(hami_region_open(&region, argv[1]) == 0);
	CHECK(hami_region_charge(&region, 1) == 0);
	caps_hold();
	the_sum_holds();
	a_stale_look_adds_nothing();
	time_is_added_once();
	const uint64_t words[] = {0,          1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63, (1ull << 63) - 1,
				  999999 * MS};
	const size_t n = sizeof words / sizeof *words;
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j <= n; j++)
			nonsense(words[i], j < n ? words[j] : (uint64_t)(now + 900 * MS),
				 j % 2 ? UINT32_MAX : 0, i % 2 ? UINT32_MAX : HAMI_USAGE_STEP_COUNT);
	return 0;
}
