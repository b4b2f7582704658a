/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/rounds.h"

#include <stdbool.h>

#include "arbitration/mean.h"

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

struct hami_span hami_rounds_whole(struct hami_rounds *rounds, struct hami_span step, struct hami_span begun)
{
	const bool known = begun.elapsed > 0 && begun.elapsed <= HAMI_ROUNDS_NS_MOST;
	const struct hami_span all = {step.elapsed + rounds->left.elapsed,
				      hami_sensible(step.used) + rounds->left.used};
	rounds->left = (struct hami_span){known ? least(begun.elapsed, all.elapsed) : 0,
					  known ? least(hami_sensible(begun.used), all.used) : 0};
	return (struct hami_span){all.elapsed - rounds->left.elapsed, all.used - rounds->left.used};
}
