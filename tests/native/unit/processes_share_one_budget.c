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
#include "region/glance.h"
#include "region/record.h"

#define MS 1000000ll
#define SPENT(ns, job, step)                                                                                 \
	((struct hami_spent){                                                                                \
		.since = now - MS, .used = (ns), .job_cap = (job), .step_cap = (step), .clock = read_now})

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
		bool shut = hami_region_spend(&region, &SPENT(last, job_cap, step_cap), &wait);
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

/* After idling a piece is as long as any other, and the pause after it longer: 25 ms of 60, where the next would begin. */
static void what_was_saved_up_is_given_back(void)
{
	run(1000 * MS, 50, 100);
	now += 1000 * MS;
	int64_t first = run(60 * MS, 50, 100);
	CHECK(first >= 24 * MS && first <= 27 * MS);
	now += 1000 * MS;
	int64_t wait;
	struct hami_spent beside = SPENT(100 * MS, 50, 100);
	beside.contended = true; /* is shut later, and gives back nothing */
	CHECK(hami_region_spend(&region, &beside, &wait));
	CHECK(region.usage->head.time_full_at < (uint64_t)(now + 2 * 100 * MS));
	CHECK(near(run(2000 * MS, 50, 100), 1000 * MS - 100 * MS));
}

/* Two processes that each use the GPU when they may: what the second uses is missed by the first. */
static void the_sum_holds(void)
{
	int64_t used = 0, wait, other;
	run(1000 * MS, 50, 100);
	for (int i = 0; i < 2000; i++, now += MS) {
		bool shut = hami_region_spend(&region, &SPENT(0, 50, 100), &wait);
		if (shut)
			continue;
		used += MS;
		pid_t pid = fork(); /* as another process does it */
		CHECK(pid >= 0);
		if (!pid) {
			hami_region_spend(&region, &SPENT(MS, 50, 100), &other);
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	CHECK(near(used, 1000 * MS));
}

static int64_t stale;

/* A clock that was read before the program was stopped: later readings are of now. */
static int64_t read_stale(void)
{
	int64_t read = stale;
	stale = now;
	return read;
}

/* One that was stopped since it read the clock: the others have gone on meanwhile, and nothing is filled up. */
static void a_stale_look_adds_nothing(void)
{
	int64_t wait;
	uint64_t *word = &region.usage->head.time_full_at;
	struct hami_spent spent = SPENT(0, 50, 100);
	while (!hami_region_spend(&region, &SPENT(MS, 50, 100), &wait))
		now += MS;
	stale = now - 100 * MS;
	spent.clock = read_stale;
	uint64_t before = *word;
	CHECK(hami_region_spend(&region, &spent, &wait));
	CHECK(*word == before);
}

static int64_t read_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

enum { LOOKS = 2000, RACERS = 4 };

static void *race(void *unused)
{
	int64_t wait;
	const struct hami_spent a_little = {
		.since = read_clock(), .used = 2, .job_cap = 50, .step_cap = 100, .clock = read_clock};
	for (int i = 0; i < LOOKS; i++)
		hami_region_spend(&region, &a_little, &wait);
	return unused;
}

/* However many look at once, what they used is taken once, and time adds itself. */
static void use_is_taken_once(void)
{
	uint64_t *word = &region.usage->head.time_full_at;
	pthread_t racers[RACERS];
	uint64_t begin = (uint64_t)read_clock() & ~3ull;
	*word = begin + 100 * MS;
	for (int i = 0; i < RACERS; i++)
		CHECK(pthread_create(&racers[i], NULL, race, NULL) == 0);
	for (int i = 0; i < RACERS; i++)
		CHECK(pthread_join(racers[i], NULL) == 0);
	CHECK((*word & ~3ull) == begin + 100 * MS + (uint64_t)RACERS * LOOKS * 2 * 100 / 50);
	*word = 0; /* back to the time that this program says */
}

static void nonsense(uint64_t full_at, uint32_t row)
{
	struct hami_usage_file *u = region.usage;
	uint32_t *own_row = &u->slots[region.slot].step_row, before = *own_row;
	u->head.time_full_at = u->steps[before].time_full_at = full_at;
	*own_row = row;
	int64_t wait;
	for (int i = 0; i < 10; i++, now += MS)
		hami_region_spend(&region, &SPENT(MS, 50, 20), &wait);
	*own_row = before;
	int64_t begun = now;
	while (hami_region_spend(&region, &SPENT(0, 50, 20), &wait)) {
		now += MS;
		CHECK(now - begun <= HAMI_SHUT_NS_MOST);
	}
	run(4000 * MS, 50, 20); /* and then the caps hold again */
	CHECK(near(run(2000 * MS, 50, 20), 400 * MS));
}

/* A process of a step, alone: what it owes when it ends is owed by the step's next. */
static void one_after_another(const char *limits, int64_t used, uint32_t processes, bool paused)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		int64_t wait;
		CHECK(hami_region_open(&region, limits, 0) == 0);
		CHECK(hami_region_charge(&region, 1) == 0);
		CHECK(hami_region_step_processes(&region) == processes);
		CHECK(hami_region_spend(&region, &SPENT(used, 100, 20), &wait) == paused);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	one_after_another(argv[1], 0, 1, false);
	one_after_another(argv[1], 100 * MS, 1, true);
	one_after_another(argv[1], 0, 1, true);
	CHECK(hami_region_open(&region, argv[1], 0) == 0);
	CHECK(hami_region_charge(&region, 1) == 0);
	caps_hold();
	what_was_saved_up_is_given_back();
	the_sum_holds();
	a_stale_look_adds_nothing();
	use_is_taken_once();
	const uint64_t words[] = {0,
				  1,
				  UINT64_MAX,
				  UINT64_MAX - 1,
				  1ull << 63,
				  (1ull << 63) - 1,
				  (uint64_t)now,
				  (uint64_t)now + 400 * MS,
				  (uint64_t)now + 400 * MS + 1,
				  (uint64_t)now - 1};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		for (int j = 0; j < 2; j++)
			nonsense(words[i], j ? UINT32_MAX : HAMI_USAGE_STEP_COUNT);
	return 0;
}
