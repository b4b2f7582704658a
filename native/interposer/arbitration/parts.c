/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/parts.h"

#include "arbitration/budget.h"

/* ns. A change of parts leaves the GPU idle for 0.35 to 1 ms on an H200. */
#define PART_LEAST 4000000ll
/* Within so many rounds each has a part: well within the second for which a process that was busy counts as such. */
#define ROUNDS_MOST 16

bool hami_part_open(const struct hami_terms *terms, const struct hami_part *part, int64_t now, int64_t *until)
{
	*until = INT64_MAX;
	if (!terms->latency_others || terms->latency || part->count < 2)
		return true;
	const bool has_turn = terms->turn_length && terms->turn_length < 1000;
	const int64_t begin = has_turn ? HAMI_ROUND_NS * (terms->turn_begin % 1000) / 1000 : 0;
	const int64_t turn = has_turn ? HAMI_ROUND_NS * terms->turn_length / 1000 : HAMI_ROUND_NS;
	const int64_t worth = turn > PART_LEAST ? turn / PART_LEAST : 1;
	const int64_t parts = part->count < worth ? part->count : worth, length = turn / parts;
	const int64_t own = part->count < parts * ROUNDS_MOST ? part->count : parts * ROUNDS_MOST;
	const int64_t since = now - begin + HAMI_ROUND_NS; /* never negative */
	const int64_t round = since / HAMI_ROUND_NS, into = since % HAMI_ROUND_NS;
	const int64_t at = into / length; /* after the turn: `parts`, or more */
	*until = now - into + (at < parts ? (at + 1) * length : HAMI_ROUND_NS);
	return at < parts && (round * parts + at) % own == part->rank % own;
}
