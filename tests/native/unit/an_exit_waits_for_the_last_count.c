/* SPDX-License-Identifier: Apache-2.0 */
/* exit() and the keeper (limits/ending.h): who waits for whom, and for how long. */
#include "limits/ending.h"

#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"

#define MS 1000000ll

static _Atomic int counts;

/* As the keeper does: sleeps, and counts when exit() waits. *argument is when it answers, ns. */
static void *keep(void *argument)
{
	for (int i = 0; i < 1000; i++)
		if (hami_ending_sleep(0, 1000 * MS)) {
			usleep((useconds_t)(*(int64_t *)argument / 1000));
			counts++;
			hami_ending_counted(0);
			return NULL;
		}
	return NULL;
}

static int64_t exit_takes(void)
{
	int64_t begun = hami_clock_steady();
	hami_ending();
	return hami_clock_steady() - begun;
}

static void who_has_nothing_to_count_is_not_waited_for(void)
{
	hami_ending_works(0, true);
	hami_ending_works(0, false);
	CHECK(exit_takes() < 5 * MS);
	hami_ending_woken(0);
	CHECK(exit_takes() >= 20 * MS); /* it will have */
	hami_ending_forked();
	hami_ending_gone(0);
	hami_ending_woken(0);
	CHECK(exit_takes() < 5 * MS);
	hami_ending_forked();
}

static void a_keeper_is_waited_for(int64_t answers, int64_t least, int counted)
{
	pthread_t keeper;
	hami_ending_works(0, true);
	CHECK(pthread_create(&keeper, NULL, keep, &answers) == 0);
	usleep(2000);
	int64_t took = exit_takes();
	CHECK(took >= least && counts == counted);
	CHECK(pthread_join(keeper, NULL) == 0 && counts == 1);
	int64_t begun = hami_clock_steady();
	CHECK(!hami_ending_sleep(0, 3 * MS) && hami_clock_steady() - begun >= 3 * MS); /* once only */
	CHECK(exit_takes() < 5 * MS);                                                  /* it has counted */
	counts = 0;
	hami_ending_forked();
}

/* Keepers of two slices answer at the same time: the waits do not add up. */
static void all_keepers_are_waited_for_together(void)
{
	hami_ending_works(0, true);
	hami_ending_works(7, true);
	int64_t took = exit_takes();
	CHECK(took >= 20 * MS && took < 39 * MS);
	CHECK(hami_ending_sleep(0, MS) && hami_ending_sleep(7, MS)); /* both were asked */
	hami_ending_counted(0);
	took = exit_takes(); /* one has not counted */
	CHECK(took >= 20 * MS);
	hami_ending_counted(7);
	CHECK(exit_takes() < 5 * MS);
	hami_ending_forked();
}

static void a_child_is_asked_anew(void)
{
	hami_ending_works(0, true);
	int64_t begun = hami_clock_steady();
	CHECK(!hami_ending_sleep(0, MS) && hami_clock_steady() - begun >= MS);
	CHECK(exit_takes() >= 20 * MS);         /* nobody answers: it ends all the same */
	CHECK(hami_ending_sleep(0, 1000 * MS)); /* at once */
}

int main(void)
{
	who_has_nothing_to_count_is_not_waited_for();
	a_keeper_is_waited_for(0, 0, 1);
	a_keeper_is_waited_for(5 * MS, 5 * MS, 1);
	a_keeper_is_waited_for(60 * MS, 20 * MS, 0);
	all_keepers_are_waited_for_together();
	a_child_is_asked_anew();
	return 0;
}
