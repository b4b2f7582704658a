/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/use.h"

void hami_use_begin(struct hami_use *use, int64_t now)
{
	*use = (struct hami_use){.on = true, .saves = true, .on_since = now, .at = now};
}

/* Returns what of a stay up to `end` was spent on saving the context. */
static int64_t saving(const struct hami_use *use, int64_t end)
{
	int64_t most = (end - use->on_since) / 4;
	return most < 0 || !use->saves ? 0 : most < HAMI_SAVE_NS ? most : HAMI_SAVE_NS;
}

/*
 * The time from the last count to this one, cut halfway between two samples: piece i is that of sample i - 1, and the
 * first that of the last sample of before.
 */
struct pieces {
	size_t count, next;
	int64_t end[HAMI_USE_SAMPLES + 1];
	bool idle[HAMI_USE_SAMPLES + 1];
};

static void cut(struct pieces *p, const struct hami_use *use, const struct hami_switch *switches,
		size_t switch_count, const struct hami_sample *samples, size_t sample_count, int64_t now)
{
	size_t s = 0;
	bool on = use->on;
	*p = (struct pieces){.count =
				     1 + (sample_count < HAMI_USE_SAMPLES ? sample_count : HAMI_USE_SAMPLES)};
	p->idle[0] = use->idle;
	for (size_t i = 1; i < p->count; i++) {
		int64_t at = samples[i - 1].at, before = i > 1 ? samples[i - 2].at : use->idle_at;
		int64_t middle = i > 1 || use->sampled ? before + (at - before) / 2 : use->at;
		p->end[i - 1] = middle > use->at ? middle : use->at;
		for (; s < switch_count && switches[s].at <= at; s++)
			on = switches[s].on;
		p->idle[i] = on && !samples[i - 1].outstanding;
	}
	p->end[p->count - 1] = now;
}

/* Returns how much of the time from `from` to `to` is in idle pieces. Later calls are for later times. */
static int64_t idle_between(struct pieces *p, int64_t from, int64_t to)
{
	int64_t idle = 0;
	for (; p->next < p->count; p->next++) {
		int64_t end = p->end[p->next] < to ? p->end[p->next] : to;
		if (end > from) {
			idle += p->idle[p->next] ? end - from : 0;
			from = end;
		}
		if (p->end[p->next] > to)
			break;
	}
	return idle;
}

/* Returns the sum, or the most there can be: of times out of order it may be more than 64 bits hold. */
static int64_t sum(int64_t used, int64_t more, int64_t most)
{
	return more > most - used ? most : used + more;
}

int64_t hami_use_count(struct hami_use *use, const struct hami_switch *switches, size_t switch_count,
		       const struct hami_sample *samples, size_t sample_count, int64_t now)
{
	if (use->at > now) { /* the clock was set back */
		use->at = now;
		use->on_since = use->on_since > now ? now : use->on_since;
		use->sampled = use->idle = false;
		use->came = use->came > now ? 0 : use->came;
	}
	const int64_t from = use->at;
	int64_t used = 0, there = 0, before = 0;
	struct pieces pieces;
	cut(&pieces, use, switches, switch_count, samples, sample_count, now);
	for (size_t i = 0; i <= switch_count; i++) {
		const int64_t end = i < switch_count ? switches[i].at : now;
		const int64_t begin = use->on_since > from ? use->on_since : from;
		if (use->on && end > begin) {
			used = sum(used, end - begin - idle_between(&pieces, begin, end), now - from);
			there = sum(there, end - begin, now - from);
		}
		if (i == switch_count)
			break;
		if (use->on)
			used -= saving(use, end);
		use->on = switches[i].on;
		use->on_since = end;
		if (use->on && switches[i].after_others) {
			use->came = end;
			use->used = 0;
			before = used > 0 ? used : 0;
		}
	}
	used = used > 0 ? used : 0;
	use->used = used > before ? sum(use->used, used - before, INT64_MAX) : use->used;
	if (sample_count) {
		use->sampled = true;
		use->idle = pieces.idle[pieces.count - 1];
		use->idle_at = samples[pieces.count - 2].at;
	}
	use->at = now;
	use->there = there;
	return used;
}

/* Returns the product, or the most there can be. */
static int64_t times(uint32_t count, int64_t each)
{
	return each > 0 && count > INT64_MAX / each ? INT64_MAX : (int64_t)count * each;
}

int64_t hami_use_of_stay(int64_t stay)
{
	return stay > HAMI_SAVE_NS + HAMI_SAVE_NS / 5 ? stay - HAMI_SAVE_NS : 0;
}

/* Returns what others, who were there, did not have of a pause. */
static int64_t lost_of_pause(const struct hami_presence *p)
{
	const int64_t lost = p->arrivals && p->paused > p->others ? p->paused - p->others : 0;
	return lost < HAMI_PAUSE_LOST_NS ? lost : HAMI_PAUSE_LOST_NS;
}

int64_t hami_use_costs(const struct hami_presence *p)
{
	const int64_t arrivals = times(p->arrivals, HAMI_ARRIVAL_NS), cut = times(p->arrivals, p->slice);
	const int64_t others = p->others > p->paused ? p->others - p->paused : 0;
	const int64_t free = p->elapsed > p->used ? p->elapsed - p->used : 0;
	const int64_t left = free > others ? free - others : 0;
	const int64_t gaps = p->on > p->used ? p->on - p->used : 0;
	const int64_t costs = sum(arrivals, gaps < cut ? gaps : cut, INT64_MAX);
	return (left < costs ? left : costs) + lost_of_pause(p);
}
