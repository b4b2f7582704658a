/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/use.h"

void hami_use_begin(struct hami_use *use, int64_t now)
{
	*use = (struct hami_use){.on = true, .saves = true, .on_since = now, .at = now};
}

/* Returns how much of the stay on the engine that ends at `end` lies after `from`. */
static int64_t part(const struct hami_use *use, int64_t from, int64_t end)
{
	int64_t begin = use->on_since > from ? use->on_since : from;
	return end > begin ? end - begin : 0;
}

/* Returns what of a stay up to `end` was spent on saving the context. */
static int64_t saving(const struct hami_use *use, int64_t end)
{
	int64_t most = (end - use->on_since) / 4;
	return most < 0 || !use->saves ? 0 : most < HAMI_SAVE_NS ? most : HAMI_SAVE_NS;
}

int64_t hami_use_count(struct hami_use *use, const struct hami_switch *switches, size_t switch_count,
		       const struct hami_sample *samples, size_t sample_count, int64_t now)
{
	if (use->at > now) { /* the clock was set back */
		use->at = now;
		use->on_since = use->on_since > now ? now : use->on_since;
	}
	const int64_t from = use->at;
	int64_t used = 0;
	size_t sample = 0, idle = 0;
	for (size_t i = 0; i < switch_count; i++) {
		const struct hami_switch *s = &switches[i];
		for (; sample < sample_count && samples[sample].at < s->at; sample++)
			idle += use->on && !samples[sample].outstanding;
		if (use->on)
			used += part(use, from, s->at) - saving(use, s->at);
		use->on = s->on;
		use->on_since = s->at;
	}
	for (; sample < sample_count; sample++)
		idle += use->on && !samples[sample].outstanding;
	if (use->on)
		used += part(use, from, now);
	if (sample_count && now > from)
		used -= (now - from) / (int64_t)sample_count * (int64_t)idle;
	use->at = now;
	return used > 0 ? used : 0;
}
