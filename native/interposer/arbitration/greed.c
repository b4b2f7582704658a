/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/greed.h"

#include "arbitration/mean.h"

#define SECOND 1000000000ll
#define MEMORY_NS (SECOND / 4) /* of the means */
#define NEARLY_ALWAYS 850      /* of its samples, permille */

/* Returns whether more than a share was used, `was` before, above `most` percent of it. */
static bool is_over(int64_t used, uint32_t share_percent, bool was, uint32_t most)
{
	const int64_t share = SECOND / 100 * (share_percent < 100 ? share_percent : 100);
	return used > share / 100 * (was ? 100 : most);
}

void hami_work_add(struct hami_work *work, const struct hami_work *later)
{
	work->elapsed += later->elapsed;
	work->others += later->others;
	work->samples += later->samples;
	work->outstanding += later->outstanding;
}

void hami_greed_step(struct hami_greed *greed, const struct hami_work *work, uint32_t share_percent,
		     uint32_t cores_percent)
{
	if (work->elapsed < 1000)
		return;
	const int64_t thousandths = hami_sensible(work->used / (work->elapsed / 1000));
	hami_mean_move(&greed->used, hami_sensible(thousandths * (SECOND / 1000)), work->elapsed, MEMORY_NS);
	if (work->samples)
		hami_mean_move(&greed->wants, hami_sensible(1000ll * work->outstanding / work->samples),
			       work->elapsed, MEMORY_NS);
	const bool always = greed->wants >= NEARLY_ALWAYS;
	greed->over = is_over(greed->used, share_percent, greed->over, HAMI_OVER_PERCENT);
	greed->greedy = greed->over || always;
	greed->yields = greed->greedy && work->others > 0;
	greed->over_cores = is_over(greed->used, cores_percent, greed->over_cores, HAMI_MORE_PERCENT);
	greed->more = greed->over_cores || always;
}
