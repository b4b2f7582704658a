/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/forecast.h"

#define SHARE 16 /* of one request in a mean */
#define SKIPS 8  /* so many periods may pass from one request to the next, once: else the period is another */
/* A request is expected from so many times the mean error before the guess until so many after it, and a little longer. */
#define BEFORE 3
#define AFTER 6
#define AFTER_NS 50000

static int64_t distance(int64_t a, int64_t b)
{
	return a < b ? b - a : a - b;
}

/* Begins anew: the time between the last two is the period, until it is known better. */
static void begin(struct hami_forecast *f, int64_t begun, int64_t period)
{
	*f = (struct hami_forecast){.last = begun, .period = period};
	f->by_last.at = f->by_rhythm.at = begun + period;
}

/* The first error is the mean of one. */
static void learn(struct hami_guess *guess, int64_t off, bool first)
{
	guess->error = first ? off : guess->error + (off - guess->error) / SHARE;
}

void hami_forecast_note(struct hami_forecast *f, int64_t begun)
{
	const int64_t since = begun - f->last;
	if (!f->last || since <= 0 || since > HAMI_FORECAST_NS_MOST) {
		begin(f, begun, 0);
		return;
	}
	const int64_t periods = f->period ? (since + f->period / 2) / f->period : 0;
	if (periods < 1 || periods > SKIPS || (periods > 1 && f->skipped)) {
		begin(f, begun, since);
		return;
	}
	f->skipped = periods > 1;
	const int64_t skipped = (periods - 1) * f->period;
	const int64_t late = begun - (f->by_rhythm.at + skipped);
	learn(&f->by_last, distance(begun, f->by_last.at + skipped), !f->seen);
	learn(&f->by_rhythm, distance(late, 0), !f->seen);
	f->seen = f->skipped ? f->seen / 2 : f->seen + (f->seen < HAMI_FORECAST_LEAST);
	f->period += (since / periods - f->period) / SHARE;
	f->last = begun;
	f->by_last.at = begun + f->period;
	/* The rhythm follows what drifts, and begins anew where it was lost. */
	f->by_rhythm.at =
		distance(late, 0) > f->period / 4 ? f->by_last.at : begun - late + late / SHARE + f->period;
}

bool hami_forecast_next(const struct hami_forecast *f, int64_t *from, int64_t *until)
{
	const struct hami_guess *guess = f->by_last.error < f->by_rhythm.error ? &f->by_last : &f->by_rhythm;
	const int64_t early = BEFORE * guess->error;
	*from = guess->at - early - HAMI_FORECAST_TAKE_NS;
	*until = guess->at + AFTER * guess->error + AFTER_NS;
	return f->seen == HAMI_FORECAST_LEAST && early <= f->period / HAMI_FORECAST_LOSS &&
	       f->period >= HAMI_FORECAST_NS_LEAST;
}
