/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/slice.h"

#include "arbitration/level.h"
#include "arbitration/mean.h"
#include "arbitration/use.h"

#define SECOND 1000000000ll
#define MEMORY_NS (SECOND / 4) /* of the averages */
/*
 * Somebody light is seen by what others leave unused, a second. Where there are caps, that does not tell: each pause
 * and each opening cuts the stay of whoever is on the engine. Some of these cuts are tiny stays; more are light.
 */
#define LIGHT_PER_SECOND 5
#define CUTS_PER_SECOND 6         /* of a cap, that are tiny stays */
#define HELD_PERMILLE 900         /* of its cores: a tenant that was held to its cap had more */
#define CAPS_MOST 4               /* more of them cut so many stays that nothing can be told */
#define TINY_NS 600000            /* an eighth of a timeslice is tiny, or this */
#define LIGHT_IN_A_LOOK 500       /* thousandths, at least */
#define DOUBLINGS_MOST 2          /* of HAMI_TRY_EVERY_NS, while the reason stays */
#define BUSY_PERMILLE 700         /* of the samples: has work, or waits for the engine with it */
#define MOST_PERMILLE 850         /* of the returns, and of the samples: nearly always */
#define FAR_TOO_LITTLE_PERCENT 70 /* of the tenant's share */
#define SERVED_PERCENT 92         /* of the other's share: it needs no shorter timeslices */
/* So much of its share is enough for a tenant, or so much of the GPU less than its share, whichever is more. */
#define FIT_PERCENT 94
#define FIT_LESS (SECOND / 50)
#define YIELDING_PERCENT 97
#define YIELDING_LESS (SECOND / 100)
#define LONGER_AT_FIRST_NS 1000000 /* what changes of tenant take from a turn, mostly */
/*
 * Somebody who is light when others look, and works as long as they yield or while their timeslices are short, must
 * not gain by it. Who misses so much of its share's time by these, or gets far too little at once, shares again with long
 * timeslices, and is wary: for some time it neither yields nor shortens its timeslices; for twice as long as the last time,
 * if that was not long ago.
 */
#define MISSED_NS_MOST (SECOND / 10)
#define WARY_NS SECOND
#define WARY_NS_MOST (8 * SECOND)

/* Returns an amount of `elapsed` ns as one of a second. */
static int64_t per_second(int64_t amount, int64_t elapsed)
{
	return hami_sensible(hami_sensible(amount) * (SECOND / 1000) / (elapsed / 1000));
}

/* Returns what was used: its share at least, where its budget held it back. */
static int64_t share_used(struct hami_span span, bool held_back, int64_t share)
{
	const int64_t used = hami_sensible(span.used < span.elapsed ? span.used : span.elapsed);
	const int64_t of_share = span.elapsed / 1000 * (share / 1000) / (SECOND / 1000000);
	return held_back && used < of_share ? of_share : used;
}

/* Returns how much of `elapsed` is enough: a percentage of the share, or `less` than it, whichever is more; ns. */
static int64_t enough_of(int64_t share, int64_t percent, int64_t less, int64_t elapsed)
{
	const int64_t part = share / 100 * percent;
	return elapsed / 1000 * ((part > share - less ? part : share - less) / 1000) / (SECOND / 1000000);
}

static void learn(struct hami_slice *slice, const struct hami_seen *seen, int64_t elapsed, int64_t share)
{
	if (slice->mode != HAMI_SLICE_TRIES) /* it gives way then, whatever it has */
		hami_mean_move(&slice->used, per_second(seen->used < elapsed ? seen->used : elapsed, elapsed),
			       elapsed, MEMORY_NS);
	if (seen->held_back && slice->used < share)
		slice->used = share;
	hami_mean_move(&slice->others, per_second(seen->stays.others, elapsed), elapsed, 2 * MEMORY_NS);
	hami_mean_move(&slice->worked, per_second(seen->stays.worked, elapsed), elapsed, 2 * MEMORY_NS);
	hami_mean_move(&slice->unused, per_second(seen->stays.unused, elapsed), elapsed, 2 * MEMORY_NS);
	hami_mean_move(&slice->tiny, per_second(1000ll * seen->stays.tiny, elapsed), elapsed, 2 * MEMORY_NS);
	hami_mean_move(&slice->returns, per_second(1000ll * seen->stays.returns, elapsed), elapsed,
		       MEMORY_NS);
	hami_mean_move(&slice->met, per_second(1000ll * seen->stays.met, elapsed), elapsed, MEMORY_NS);
	hami_mean_move(&slice->thrashed, per_second(1000ll * seen->stays.thrashed, elapsed), elapsed,
		       MEMORY_NS);
	if (seen->samples)
		hami_mean_move(&slice->wants, hami_sensible(1000ll * seen->outstanding / seen->samples),
			       elapsed, MEMORY_NS);
}

/*
 * Returns what of the others' stays tells of light tenants, and sets how much of it in a second does, thousandths.
 * `others` is the time of others, ns a second: below the fewest cores of one of them, nobody was held to a cap.
 */
static int64_t signs_of_light(const struct hami_seen *seen, int64_t unused, int64_t tiny, int64_t others,
			      int64_t *enough)
{
	const int64_t least = seen->others_least_percent < 100 ? seen->others_least_percent : 100;
	const bool cuts = seen->capped || others >= SECOND / 1000 * HELD_PERMILLE / 100 * least;
	const int64_t caps = !cuts ? 0 : seen->caps < 1000 ? seen->caps : 1000;
	*enough = 1000 * (LIGHT_PER_SECOND + CUTS_PER_SECOND * caps);
	return caps ? tiny : unused;
}

void hami_seen_add(struct hami_seen *seen, const struct hami_seen *later)
{
	seen->now = later->now;
	seen->elapsed += later->elapsed;
	seen->begun = later->begun;
	seen->caps = later->caps;
	seen->capped = later->capped;
	seen->others_least_percent = later->others_least_percent;
	seen->other_percent = later->other_percent;
	seen->held_back = seen->held_back || later->held_back;
	seen->can_yield = later->can_yield;
	seen->samples += later->samples;
	seen->outstanding += later->outstanding;
	seen->stays.others += later->stays.others;
	seen->stays.worked += later->stays.worked;
	seen->stays.unused += later->stays.unused;
	seen->stays.tiny += later->stays.tiny;
	seen->stays.returns += later->stays.returns;
	seen->stays.met += later->stays.met;
	seen->stays.pressed += later->stays.pressed;
	seen->stays.thrashed += later->stays.thrashed;
}

static bool at_least(uint32_t permille, int64_t part, int64_t whole)
{
	return part > 0 && part >= whole * permille / 1000;
}

/* Returns how much has gone by of the period in which `now` lies. */
static int64_t into(int64_t now, int64_t period)
{
	return now % period + (now % period < 0 ? period : 0);
}

/* Returns whether it is time to try, for who has tried `doublings` times in a row. */
static bool in_try(int64_t now, uint32_t doublings)
{
	return into(now, HAMI_TRY_EVERY_NS << doublings) < HAMI_TRY_NS;
}

/* Returns how much of the time to look has gone by; negative: it is not that time. */
static int64_t in_look(int64_t now)
{
	int64_t since = into(now, HAMI_LOOK_EVERY_NS) - HAMI_LOOK_AT_NS;
	return since < HAMI_LOOK_NS ? since : -1;
}

static void yield(struct hami_slice *slice, bool thrashes)
{
	slice->mode = HAMI_SLICE_YIELDS;
	slice->thrashes = thrashes;
	slice->yielded = slice->missed = 0;
	slice->longer = slice->longer ? slice->longer : LONGER_AT_FIRST_NS;
}

static void begin_try(struct hami_slice *slice)
{
	slice->mode = HAMI_SLICE_TRIES;
	slice->doublings += slice->doublings < DOUBLINGS_MOST;
	slice->returns_trying = slice->pressed_trying = 0;
	slice->missed = 0;
}

/* Goes back to long timeslices at once, and is wary. */
static void distrust(struct hami_slice *slice)
{
	const bool again = slice->wary_length && slice->trusts < WARY_NS_MOST;
	const int64_t longer = slice->wary_length < WARY_NS_MOST / 2 ? 2 * slice->wary_length : WARY_NS_MOST;
	slice->mode = HAMI_SLICE_SHARES;
	slice->level.now = 0;
	slice->longer = 0;
	slice->wary_length = slice->wary = again ? longer : WARY_NS;
	slice->trusts = 0;
}

/* Returns whether yielding, or short timeslices, keep too much of its share from the tenant. */
static bool misses(struct hami_slice *slice, struct hami_span span, int64_t share)
{
	const int64_t wanted = enough_of(share, FIT_PERCENT, FIT_LESS, span.elapsed);
	if (slice->mode == HAMI_SLICE_TRIES)
		return false; /* a whole try could cost more than that */
	if (slice->mode == HAMI_SLICE_SHARES && !slice->level.now)
		slice->missed = 0;
	slice->missed = hami_sensible(slice->missed + wanted - hami_sensible(span.used));
	/* Where tenants hinder each other they have no better choice. */
	return !(slice->mode == HAMI_SLICE_YIELDS && slice->thrashes) &&
	       slice->missed / 100 > MISSED_NS_MOST / 100 * (share / 1000) / (SECOND / 1000);
}

/* Returns whether the only other tenant has its share: of all time, or of what the two divided. */
static bool is_served(const struct hami_slice *slice, int64_t other_percent, int64_t share)
{
	const int64_t theirs = SECOND / 100 * (other_percent < 100 ? other_percent : 100);
	const int64_t divided = (slice->used + slice->worked) / 1000;
	return theirs && (slice->worked >= theirs / 100 * SERVED_PERCENT ||
			  slice->worked / 1000 * ((share + theirs) / 1000) >=
				  divided * (theirs / 100 * SERVED_PERCENT / 1000));
}

/* Fits the turn of one that yields to what it has of its share: changes of tenant take from it. */
static void fit_turn(struct hami_slice *slice, int64_t used, int64_t elapsed, int64_t share)
{
	const int64_t wanted = enough_of(share, YIELDING_PERCENT, YIELDING_LESS, elapsed);
	int64_t longer = slice->longer + (wanted - used) / 4;
	if (!at_least(MOST_PERMILLE, slice->wants, 1000))
		longer = 0;
	slice->longer = longer < 0 ? 0 : longer < HAMI_LONGER_NS_MOST ? longer : HAMI_LONGER_NS_MOST;
}

/* Returns the level of the timeslices now. */
static uint32_t level_of(const struct hami_slice *slice)
{
	if (slice->mode == HAMI_SLICE_SHARES)
		return slice->level.now;
	return slice->mode == HAMI_SLICE_TRIES ? HAMI_LEVEL_MOST : 0;
}

/* Shares: fits the timeslice to the others, and begins to try where that does not suffice. */
static void share_on(struct hami_slice *slice, const struct hami_seen *seen, int64_t share,
		     uint32_t longest_us)
{
	int64_t light_enough,
		signs = signs_of_light(seen, slice->unused, slice->tiny, slice->others, &light_enough);
	/* Who has begun to shorten goes on by what is left unused: looks tell whether it is for somebody light. */
	bool light = slice->level.now ? slice->unused >= 1000 * LIGHT_PER_SECOND : signs >= light_enough;
	bool shortest = hami_slice_us(slice, longest_us) <= HAMI_SLICE_US_LEAST;
	if (slice->level.now > HAMI_LEVELS_AT_ONCE && slice->used < share / 100 * FAR_TOO_LITTLE_PERCENT) {
		distrust(slice);
		return;
	}
	bool served = is_served(slice, seen->other_percent, share);
	hami_level_fit(&slice->level, share, light && !shortest && !slice->wary && !served, served);
	if (slice->level.now && in_look(seen->now) >= 0) {
		slice->mode = HAMI_SLICE_LOOKS;
		slice->settled = false;
		return;
	}
	bool met = light && at_least(MOST_PERMILLE, slice->met, slice->returns) &&
		   at_least(MOST_PERMILLE, slice->wants, 1000);
	bool thrashes = light && at_least(MOST_PERMILLE, slice->thrashed, slice->returns) &&
			at_least(BUSY_PERMILLE, slice->wants, 1000);
	if (!seen->can_yield || slice->wary || (!met && !thrashes))
		slice->doublings = 0;
	else if (thrashes && in_try(seen->now, 0))
		yield(slice, true);
	else if (met && in_try(seen->now, slice->doublings))
		begin_try(slice);
}

/* Looks with long timeslices, and shares with long ones again if nobody leaves early. */
static void look_on(struct hami_slice *slice, const struct hami_seen *seen)
{
	int64_t since = in_look(seen->now), enough, signs;
	signs = signs_of_light(seen, seen->stays.unused, 1000ll * seen->stays.tiny,
			       per_second(seen->stays.others, seen->elapsed), &enough);
	slice->light_looking =
		slice->settled ? hami_sensible(slice->light_looking + hami_sensible(signs)) : 0;
	slice->settled = slice->settled || since < 0 || since >= HAMI_LOOK_SETTLE_NS;
	if (since >= 0)
		return;
	slice->mode = HAMI_SLICE_SHARES;
	enough = enough / 1000 * (HAMI_LOOK_NS - HAMI_LOOK_SETTLE_NS) / 1000000;
	if (slice->light_looking >= (enough > LIGHT_IN_A_LOOK ? enough : LIGHT_IN_A_LOOK))
		return;
	slice->level.now = 0;
	slice->unused = slice->tiny = slice->met = 0;
}

/* Tries: counts, and decides at the end. */
static void try_on(struct hami_slice *slice, const struct hami_seen *seen)
{
	slice->returns_trying += seen->stays.returns;
	slice->pressed_trying += seen->stays.pressed;
	if (in_try(seen->now, 0))
		return;
	bool pressed = at_least(MOST_PERMILLE, slice->pressed_trying, slice->returns_trying);
	if (pressed)
		yield(slice, false);
	else
		slice->mode = HAMI_SLICE_SHARES;
}

void hami_slice_step(struct hami_slice *slice, const struct hami_seen *seen, uint32_t cores_percent,
		     uint32_t longest_us)
{
	const int64_t elapsed = seen->elapsed > SECOND ? SECOND : seen->elapsed;
	const int64_t share = SECOND / 100 * (cores_percent < 100 ? cores_percent : 100);
	if (seen->caps > CAPS_MOST)
		*slice = (struct hami_slice){0};
	if (seen->caps > CAPS_MOST || elapsed < 1000)
		return;
	learn(slice, seen, elapsed, share);
	slice->yielded += elapsed;
	slice->trusts =
		slice->wary || slice->trusts >= WARY_NS_MOST ? slice->trusts : slice->trusts + elapsed;
	slice->wary = slice->wary > elapsed ? slice->wary - elapsed : 0;
	const struct hami_span step = {elapsed, seen->used};
	/* A cap's own pauses end its rounds, wherever they are. */
	const struct hami_span begun = seen->capped ? (struct hami_span){0} : seen->begun;
	const struct hami_span whole = hami_rounds_whole(&slice->rounds, step, begun);
	hami_level_tell(&slice->level, level_of(slice), share_used(whole, seen->held_back, share),
			whole.elapsed);
	if (misses(slice, whole, share))
		distrust(slice);
	else if (slice->mode == HAMI_SLICE_SHARES)
		share_on(slice, seen, share, longest_us);
	else if (slice->mode == HAMI_SLICE_LOOKS)
		look_on(slice, seen);
	else if (slice->mode == HAMI_SLICE_TRIES)
		try_on(slice, seen);
	else if (!in_try(seen->now, slice->thrashes ? 0 : slice->doublings) || slice->yielded <= HAMI_TRY_NS)
		fit_turn(slice, share_used(step, seen->held_back, share), elapsed, share);
	else if (slice->thrashes)
		slice->mode = HAMI_SLICE_SHARES;
	else
		begin_try(slice);
}

int64_t hami_slice_next(const struct hami_slice *slice, int64_t now)
{
	int64_t every = HAMI_TRY_EVERY_NS, edge = HAMI_TRY_NS;
	if (slice->mode == HAMI_SLICE_SHARES && !slice->level.now)
		return INT64_MAX;
	if (slice->mode == HAMI_SLICE_SHARES || slice->mode == HAMI_SLICE_LOOKS) {
		int64_t since = in_look(now);
		every = HAMI_LOOK_EVERY_NS;
		edge = HAMI_LOOK_AT_NS + (since < 0                     ? 0
					  : since < HAMI_LOOK_SETTLE_NS ? HAMI_LOOK_SETTLE_NS
									: HAMI_LOOK_NS);
	} else if (slice->mode == HAMI_SLICE_YIELDS) {
		edge = 0;
	}
	int64_t left = (edge - into(now, every)) % every;
	left = left > 0 ? left : left + every;
	return now > INT64_MAX - left ? INT64_MAX : now + left;
}

int64_t hami_slice_instant(int64_t now)
{
	const int64_t left = HAMI_SET_EVERY_NS - into(now, HAMI_SET_EVERY_NS);
	return now > INT64_MAX - left ? INT64_MAX : now + left;
}

bool hami_slice_instant_came(int64_t instant, int64_t now)
{
	return now >= instant || hami_slice_instant(now) < instant;
}

bool hami_slice_yields(const struct hami_slice *slice)
{
	return slice->mode == HAMI_SLICE_TRIES || slice->mode == HAMI_SLICE_YIELDS;
}

int64_t hami_slice_longer(const struct hami_slice *slice)
{
	return slice->mode == HAMI_SLICE_YIELDS && !slice->thrashes ? slice->longer : 0;
}

uint32_t hami_slice_us(const struct hami_slice *slice, uint32_t longest_us)
{
	return hami_level_us(level_of(slice), longest_us);
}

int64_t hami_slice_others(const struct hami_slice *slice, uint32_t longest_us)
{
	/* Who tries meets others that share. */
	uint32_t level = slice->mode == HAMI_SLICE_LOOKS ? 0 : slice->level.now;
	return (int64_t)hami_level_us(level, longest_us) * 1000;
}

int64_t hami_slice_tiny(int64_t timeslice)
{
	return timeslice / 8 > TINY_NS ? timeslice / 8 : TINY_NS;
}

static int64_t without_saving(int64_t stay)
{
	return stay - (stay / 4 < HAMI_SAVE_NS ? stay / 4 : HAMI_SAVE_NS);
}

int64_t hami_slice_worked(int64_t stay, int64_t longest)
{
	return stay > 0 && stay <= hami_sensible(longest) / 4 * 5 + HAMI_SAVE_NS ? without_saving(stay) : 0;
}

int64_t hami_slice_unused(int64_t stay, int64_t timeslice)
{
	int64_t used = without_saving(stay);
	timeslice = hami_sensible(timeslice);
	if (timeslice <= 0 || used >= timeslice)
		return 0;
	int64_t unused = used <= 0 ? 1000 : (timeslice - used) * 1000 / timeslice;
	return unused * unused / 1000;
}
