/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/announce.h"

#include <stdlib.h>

#include "arbitration/forecast.h"
#include "arbitration/terms.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/movable.h"
#include "hami_contract.h"
#include "limits/launched.h"
#include "limits/outstanding.h"
#include "limits/placeholder.h"
#include "region/process.h"

static struct {
	struct hami_forecast forecast;
	int64_t noted;     /* when the last request that was learnt from began */
	int64_t announced; /* the same of the one after which the next was announced */
	int64_t until;     /* until when the placeholder that is being made may stay */
	bool prepared;     /* what a placeholder takes, or it was refused */
	bool wanted;       /* by the program's owner */
} announce;

void hami_announce_begin(void)
{
	const char *text = secure_getenv(HAMI_ENV_ANNOUNCE);
	announce.wanted = text && atoi(text) == 1;
}

void hami_announce_note(int64_t begun)
{
	if (begun == announce.noted)
		return;
	announce.noted = begun;
	hami_forecast_note(&announce.forecast, begun);
}

/* Returns whether the GPU may be taken before a request is there. Not in a program that is held when its memory moves. */
static bool may_take(void)
{
	if (hami_slice_count() != 1 || hami_movable_tracked())
		return false;
	const struct hami_region *region = hami_slice_region(0);
	const struct hami_terms terms = hami_terms_read(region->job, region->step);
	return terms.latency && terms.others_least_percent && !terms.latency_others;
}

/* Takes a millisecond or so: not when a request is about to come. */
static void prepare(void)
{
	announce.prepared = true;
	hami_log(1, "requests come every %lld us: from now on the GPU is taken for them\n",
		 (long long)announce.forecast.period / 1000);
	hami_placeholder_begin(0, false);
}

static void take(void)
{
	/* First, so that the launch of a request that comes in this very moment sees it, or is seen. */
	hami_launched_ends_placeholder();
	/* Asked now: the process may have been stopped meanwhile. */
	const int64_t most = announce.until - hami_clock_steady();
	if (most > 0)
		hami_placeholder_begin((uint64_t)most, false);
}

bool hami_announce(int64_t now, int64_t *wait)
{
	int64_t from, until;
	*wait = HAMI_ANNOUNCE_NONE;
	if (!announce.wanted || announce.announced == announce.noted ||
	    !hami_forecast_next(&announce.forecast, &from, &until) || now >= until)
		return false;
	if (now < from && !announce.prepared && may_take()) {
		hami_outstanding_visit(0, prepare);
		now = hami_clock_steady();
	}
	if (now < from) {
		*wait = from - now;
		return false;
	}
	announce.announced = announce.noted;
	announce.until = until;
	const bool takes = announce.prepared && now < until && may_take();
	if (takes)
		hami_outstanding_visit(0, take);
	return takes;
}

void hami_announce_forked(void)
{
	announce.forecast = (struct hami_forecast){0};
	announce.noted = announce.announced = 0;
	announce.prepared = false;
}
