/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/parts.h"

#include "arbitration/budget.h"
#include "arbitration/mean.h"

/* ns. A change of parts leaves the GPU idle for 0.35 to 1 ms on an H200. */
#define PART_LEAST 4000000ll
/* A context's is longer: where the process is open all the time, each change is one more. */
#define CONTEXT_LEAST 10000000ll
/* Within so many rounds each has a part: well within the second for which a process that was busy counts as such. */
#define ROUNDS_MOST 16
#define CORES_A_ROUND 2 /* the same processes are open for a round for each so many */

/* A piece of time, ns, and its number among all that are divided like it. */
struct piece {
	int64_t number, begin, end;
};

/* Returns the tenant's turn in the round in which `now` is: the round begins with it. */
static struct piece turn_at(const struct hami_terms *terms, int64_t now)
{
	const bool has_turn = terms->turn_length && terms->turn_length < 1000 && !terms->latency;
	const int64_t offset = has_turn ? HAMI_ROUND_NS * (terms->turn_begin % 1000) / 1000 : 0;
	const int64_t length = has_turn ? HAMI_ROUND_NS * terms->turn_length / 1000 : HAMI_ROUND_NS;
	const int64_t since = now - offset + HAMI_ROUND_NS; /* never negative */
	const int64_t begin = now - since % HAMI_ROUND_NS;
	return (struct piece){since / HAMI_ROUND_NS, begin, begin + length};
}

/* Returns in how many parts a piece is divided: one for each, and none shorter than `least`. */
static int64_t parts_of(const struct piece *whole, int64_t least, uint32_t count)
{
	const int64_t length = whole->end - whole->begin, worth = length > least ? length / least : 1;
	return count < worth ? count : worth;
}

/* Returns the part in which `now` is, of so many equal ones; after all of them, the last one. */
static struct piece part_at(const struct piece *whole, int64_t parts, int64_t now)
{
	const int64_t length = (whole->end - whole->begin) / parts, at = (now - whole->begin) / length,
		      within = at < parts ? at : parts - 1;
	return (struct piece){whole->number * parts + within, whole->begin + within * length,
			      whole->begin + (within + 1) * length};
}

static bool divides_turn(const struct hami_terms *terms, const struct hami_part *part)
{
	return terms->latency_others && !terms->latency && part->count >= 2;
}

/*
 * Returns for how many common rounds the same ones are open. Each change costs others a stay of the tenant, so there are more
 * where that is long; but only so many that each process has its turn within ROUNDS_MOST.
 */
static uint32_t rounds_each(const struct hami_terms *terms, const struct hami_part *part)
{
	const uint32_t count = part->count ? part->count : 1, wanted = terms->cores_percent / CORES_A_ROUND;
	const uint64_t most = (uint64_t)ROUNDS_MOST * hami_terms_at_once(terms) / count;
	const uint64_t rounds = wanted < most ? wanted : most;
	return rounds < 1 ? 1 : rounds < ROUNDS_MOST ? (uint32_t)rounds : ROUNDS_MOST;
}

/* Returns how many processes are open at a time: as many as fit, or as it takes for each to be in one of ROUNDS_MOST. */
static uint32_t at_once(const struct hami_terms *terms, const struct hami_part *part)
{
	const uint32_t most = hami_terms_at_once(terms),
		       least = part->count / ROUNDS_MOST + (part->count % ROUNDS_MOST != 0);
	return most > least ? most : least;
}

static bool is_crowded(const struct hami_terms *terms, const struct hami_part *part)
{
	return !terms->latency_others && part->count > at_once(terms, part);
}

/* Returns which of the pieces of so many common rounds `now` is in. */
static struct piece rounds_at(uint32_t rounds, int64_t now)
{
	const int64_t length = rounds * HAMI_ROUND_NS, begin = now - now % length;
	return (struct piece){now / length, begin, begin + length};
}

/* Returns whether the process is among those that are open in this round. */
static bool in_round(const struct hami_terms *terms, const struct hami_part *part, int64_t now,
		     int64_t *until)
{
	if (!is_crowded(terms, part) || part->rank >= part->count)
		return true;
	const struct piece piece = rounds_at(rounds_each(terms, part), now);
	const uint32_t open = at_once(terms, part);
	const int64_t first = piece.number % part->count * open % part->count;
	*until = piece.end;
	return ((int64_t)part->rank + part->count - first) % part->count < open;
}

/* Returns in how many of the clock's rounds before this one, in which it is open, the process was. */
static uint64_t rounds_before(const struct hami_terms *terms, const struct hami_part *part, uint64_t round)
{
	if (!is_crowded(terms, part) || part->rank >= part->count)
		return round;
	const uint64_t each = rounds_each(terms, part), open = at_once(terms, part);
	const uint64_t times = (round / each * open + part->count - 1 - part->rank) / part->count;
	return times * each + round % each;
}

uint32_t hami_part_sharers(const struct hami_terms *terms, const struct hami_part *part, uint32_t sharers)
{
	if (!is_crowded(terms, part))
		return sharers;
	const uint64_t open = (uint64_t)at_once(terms, part) * HAMI_PART_FULL;
	return open < sharers ? (uint32_t)open : sharers;
}

bool hami_part_one_context(const struct hami_terms *terms, const struct hami_part *part, uint32_t count)
{
	if (count < 2 || terms->latency)
		return false;
	if (terms->latency_others)
		return true;
	const uint32_t most = at_once(terms, part), processes = part->count < most ? part->count : most;
	return (uint64_t)(processes ? processes : 1) * count > most;
}

/* Returns of how many parts of the turn one is a process's. */
static int64_t own_of(const struct hami_part *part, int64_t parts)
{
	return part->count < parts * ROUNDS_MOST ? part->count : parts * ROUNDS_MOST;
}

bool hami_part_open(const struct hami_terms *terms, const struct hami_part *part, int64_t now, int64_t *until)
{
	*until = INT64_MAX;
	if (!divides_turn(terms, part))
		return in_round(terms, part, now, until);
	const struct piece turn = turn_at(terms, now);
	const int64_t parts = parts_of(&turn, PART_LEAST, part->count), own = own_of(part, parts);
	const struct piece piece = part_at(&turn, parts, now);
	*until = now < piece.end ? piece.end : turn.begin + HAMI_ROUND_NS;
	return now < piece.end && piece.number % own == part->rank % own;
}

uint32_t hami_part_context(const struct hami_terms *terms, const struct hami_part *part, uint32_t count,
			   int64_t now, int64_t *until)
{
	*until = INT64_MAX;
	if (count < 2)
		return 0;
	if (!terms->latency_others) {
		const struct piece round = rounds_at(1, now);
		*until = round.end;
		return (uint32_t)(rounds_before(terms, part, (uint64_t)round.number) % count);
	}
	const struct piece turn = turn_at(terms, now);
	struct piece own = turn;
	if (divides_turn(terms, part)) {
		const int64_t parts = parts_of(&turn, PART_LEAST, part->count);
		own = part_at(&turn, parts, now);
		own.number /= own_of(part, parts);
	}
	const struct piece piece = part_at(&own, parts_of(&own, CONTEXT_LEAST, count), now);
	*until = now < piece.end ? piece.end : turn.begin + HAMI_ROUND_NS;
	return (uint32_t)(piece.number % count);
}

uint32_t hami_part_filled(uint32_t filled, int64_t stay, int64_t timeslice)
{
	const int64_t all = HAMI_PART_FULL;
	if (stay < 0 || timeslice <= 0)
		return filled;
	timeslice = hami_sensible(timeslice);
	const int64_t now = stay >= timeslice ? all : stay * all / timeslice;
	const int64_t before = filled < HAMI_PART_FULL ? filled : all;
	return (uint32_t)(now > before ? now : (15 * before + now) / 16);
}

uint32_t hami_part_counts(uint32_t filled)
{
	return filled < HAMI_PART_FULL / 4 * 3 ? filled : HAMI_PART_FULL;
}

uint32_t hami_part_settled(uint32_t before, uint32_t now)
{
	before = before > HAMI_PART_FULL ? before : HAMI_PART_FULL;
	now = now > HAMI_PART_FULL ? now : HAMI_PART_FULL;
	const uint32_t differs = now > before ? now - before : before - now;
	return differs > before / 16 ? now : before;
}

uint32_t hami_part_worked(uint32_t worked, bool works)
{
	return (3 * worked + (works ? 1000 : 0)) / 4;
}
