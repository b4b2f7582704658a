/* SPDX-License-Identifier: Apache-2.0 */
/* Time used, from switches and samples (arbitration/use.h). Times in ms of a clock that starts at 1000. */
#include "arbitration/use.h"
#include "check.h"

#define MS 1000000ll
#define AT(ms) ((1000 + (ms)) * MS)

static struct hami_use use;

static int64_t count(const struct hami_switch *s, size_t n, const struct hami_sample *m, size_t k, int64_t at)
{
	int64_t used = hami_use_count(&use, s, n, m, k, AT(at));
	CHECK(used >= 0);
	return used;
}

static void alone(void)
{
	const struct hami_sample half[] = {{AT(2), true}, {AT(4), false}, {AT(6), true}, {AT(8), false}};
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, NULL, 0, 10) == 10 * MS); /* nobody looked: all of it */
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, half, 4, 10) == 5 * MS);
	CHECK(count(NULL, 0, NULL, 0, 10) == 0); /* no time has passed */
}

/* It does not matter when is counted: after a sample of work, as a keeper does, or in between. */
static void a_sample_stands_for_the_time_around_it(void)
{
	const struct hami_sample first[] = {{AT(0), false}, {AT(10), false}, {AT(20), true}};
	const struct hami_sample second[] = {{AT(30), true}, {AT(40), false}};
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, first, 3, 20) == 5 * MS);
	CHECK(count(NULL, 0, NULL, 0, 24) == 4 * MS); /* as it was by the last sample */
	CHECK(count(NULL, 0, second, 2, 45) == 11 * MS);
	CHECK(count(NULL, 0, NULL, 0, 50) == 0);
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, NULL, 0, 5) == 5 * MS); /* nothing is known of it */
}

/* While it is off the engine nothing is known of its work; what a sample there says is no reason to count less. */
static void samples_off_the_engine_say_nothing(void)
{
	const struct hami_switch turns[] = {{.at = AT(2), .on = false}, {.at = AT(8), .on = true}};
	const struct hami_sample off[] = {{AT(5), false}}, on[] = {{AT(9), false}};
	hami_use_begin(&use, AT(0));
	CHECK(hami_use_count(&use, turns, 2, off, 1, AT(10)) == 4 * MS - HAMI_SAVE_NS);
	hami_use_begin(&use, AT(0));
	CHECK(hami_use_count(&use, turns, 2, on, 1, AT(10)) == 0);
	hami_use_begin(&use, AT(0));
	const struct hami_sample both[] = {{AT(1), true}, {AT(9), false}};
	/* idle from the middle, where it is off, on */
	CHECK(hami_use_count(&use, turns, 2, both, 2, AT(10)) == 2 * MS - HAMI_SAVE_NS);
}

static void more_samples_than_fit(void)
{
	static struct hami_sample many[HAMI_USE_SAMPLES + 10];
	for (int i = 0; i < HAMI_USE_SAMPLES + 10; i++)
		many[i] = (struct hami_sample){AT(i), i < HAMI_USE_SAMPLES / 2};
	hami_use_begin(&use, AT(0));
	int64_t used = hami_use_count(&use, NULL, 0, many, HAMI_USE_SAMPLES + 10, AT(HAMI_USE_SAMPLES + 10));
	CHECK(used == HAMI_USE_SAMPLES / 2 * MS - MS / 2);
}

static void beside_others(void)
{
	const struct hami_switch turns[] = {
		{.at = AT(2), .on = false}, {.at = AT(5), .on = true}, {.at = AT(9), .on = false}};
	hami_use_begin(&use, AT(0));
	int64_t used = count(turns, 3, NULL, 0, 10);
	CHECK(used <= 6 * MS && used >= 6 * MS - 2 * HAMI_SAVE_NS);
	CHECK(count(NULL, 0, NULL, 0, 20) == 0); /* it is off */
	const struct hami_switch back[] = {{.at = AT(25), .on = true}};
	CHECK(count(back, 1, NULL, 0, 30) == 5 * MS);
	CHECK(count(NULL, 0, NULL, 0, 40) == 10 * MS);
}

/* A round lasts from when it comes after others until it does so again. */
static void rounds(void)
{
	const struct hami_switch turns[] = {{.at = AT(2), .on = false},
					    {.at = AT(5), .on = true, .after_others = true},
					    {.at = AT(9), .on = false}};
	const struct hami_switch back[] = {{.at = AT(25), .on = true}}; /* others had no work */
	const struct hami_switch again[] = {{.at = AT(41), .on = false},
					    {.at = AT(44), .on = true, .after_others = true}};
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, NULL, 0, 1) == MS && !use.came);
	count(turns, 3, NULL, 0, 10);
	CHECK(use.came == AT(5) && use.used == 4 * MS - HAMI_SAVE_NS);
	count(back, 1, NULL, 0, 30);
	count(NULL, 0, NULL, 0, 40);
	CHECK(use.came == AT(5) && use.used == 19 * MS - HAMI_SAVE_NS);
	count(again, 2, NULL, 0, 45);
	CHECK(use.came == AT(44) && use.used == MS);
	count(NULL, 0, NULL, 0, 3); /* the clock is set back */
	CHECK(!use.came);
}

static void short_turns_are_not_all_saving(void)
{
	struct hami_switch turns[64];
	hami_use_begin(&use, AT(0));
	use.on = false;
	for (int i = 0; i < 64; i++)
		turns[i] = (struct hami_switch){.at = AT(0) + i * MS / 100, .on = i % 2 == 0};
	int64_t used = count(turns, 64, NULL, 0, 1);
	CHECK(used >= 32 * MS / 100 / 2 && used <= 32 * MS / 100);
}

/* From then on the time counts as before, not only once the clock is where it was. */
static void the_clock_is_set_back(void)
{
	hami_use_begin(&use, AT(0));
	CHECK(count(NULL, 0, NULL, 0, 10) == 10 * MS);
	CHECK(count(NULL, 0, NULL, 0, -900) <= 10 * MS);
	CHECK(count(NULL, 0, NULL, 0, -890) == 10 * MS);
	CHECK(count(NULL, 0, NULL, 0, 5000) <= 5890 * MS); /* and forth; the budget takes a second at most */
	CHECK(count(NULL, 0, NULL, 0, 5010) == 10 * MS);
}

int main(void)
{
	the_clock_is_set_back();
	alone();
	a_sample_stands_for_the_time_around_it();
	samples_off_the_engine_say_nothing();
	more_samples_than_fit();
	beside_others();
	rounds();
	short_turns_are_not_all_saving();
	return 0;
}
