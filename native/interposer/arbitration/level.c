/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/level.h"

#include "arbitration/mean.h"

#define SECOND 1000000000ll
#define TELLS_NS (SECOND / 10) /* what was used in less than this tells nothing */
/* Of the share: from the first on levels are added, below the second taken; one, and one more for each third. */
#define ENOUGH_PERMILLE 1000
#define TOO_LITTLE_PERMILLE 990
#define PERMILLE_PER_LEVEL 70 /* about as much as one level moves what a tenant has */
/* Longer ones take nothing from its own share, so more levels at once. */
#define LONGER_AT_ONCE HAMI_LEVELS_OF_A_HALF

void hami_level_tell(struct hami_level *level, uint32_t of_timeslices, int64_t used, int64_t elapsed)
{
	if (level->told != of_timeslices) {
		level->told = of_timeslices;
		level->since = level->used = 0;
		return;
	}
	if (level->since >= 2 * TELLS_NS) {
		level->since /= 2;
		level->used /= 2;
	}
	level->since += elapsed;
	level->used += hami_sensible(used);
}

static void move(struct hami_level *level, int64_t by)
{
	const int64_t moved = level->now + by;
	level->now = moved < 0 ? 0 : moved < HAMI_LEVEL_MOST ? (uint32_t)moved : HAMI_LEVEL_MOST;
}

/* Returns by how many levels to go on, at most `most`, for a use that is so far from what it is to be. */
static int64_t levels(int64_t permille, int64_t most)
{
	const int64_t wanted = 1 + permille / PERMILLE_PER_LEVEL;
	return wanted < most ? wanted : most;
}

void hami_level_fit(struct hami_level *level, int64_t share, bool may_shorten, bool served)
{
	if (level->since < TELLS_NS)
		return;
	const int64_t a_second = level->used * (SECOND / 1000) / (level->since / 1000);
	const int64_t permille = a_second / (share / 1000 + 1);
	if (may_shorten && permille >= ENOUGH_PERMILLE)
		move(level, levels(permille - ENOUGH_PERMILLE, HAMI_LEVELS_AT_ONCE));
	else if (served)
		move(level, -LONGER_AT_ONCE);
	else if (permille < TOO_LITTLE_PERMILLE)
		move(level, -levels(TOO_LITTLE_PERMILLE - permille, LONGER_AT_ONCE));
}

uint32_t hami_level_us(uint32_t level, uint32_t longest_us)
{
	static const uint16_t permille[HAMI_LEVELS_OF_A_HALF] = {1000, 917, 841, 771, 707, 648, 595, 545};
	level = level < HAMI_LEVEL_MOST ? level : HAMI_LEVEL_MOST;
	const uint32_t halved = longest_us >> level / HAMI_LEVELS_OF_A_HALF;
	const uint32_t us = (uint32_t)(1ull * halved * permille[level % HAMI_LEVELS_OF_A_HALF] / 1000);
	const uint32_t least = longest_us < HAMI_SLICE_US_LEAST ? longest_us : HAMI_SLICE_US_LEAST;
	return us < least ? least : us;
}
