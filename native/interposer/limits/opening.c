/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/opening.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "limits/channels.h"
#include "limits/meter.h"
#include "limits/outstanding.h"
#include "region/glance.h"
#include "region/latency.h"
#include "region/process.h"

#define MS 1000000ll
#define GONE_IN_A_ROW 100 /* pauses that channels foiled which were just freed */

static void set_paused(struct hami_opening *o, const uint64_t *paused, size_t count)
{
	if (!count && !o->paused_count)
		return;
	if (count)
		memmove(o->paused, paused, count * sizeof *paused);
	o->paused_count = count;
	hami_known_pause(o->slice, o->paused, count);
}

/* After a pause that was refused: some channels may be paused. What cannot be opened now is tried again. */
static void refused(struct hami_opening *o, int rc, int64_t steady)
{
	if (rc != -EAGAIN || ++o->gone >= GONE_IN_A_ROW) {
		o->refusals++;
		o->error = rc;
	}
	if (!o->open)
		return;
	if (hami_channels_pause(o->slice, false, NULL) == 0) {
		set_paused(o, NULL, 0);
		hami_meter_opened(o->slice, true, hami_clock_shared());
		return;
	}
	o->open = false;
	o->closed = steady;
}

/* Notes, at an opening, what the job used since the last one, of the time for which it was open: as a moving mean. */
static void note_duty(struct hami_opening *o, int64_t steady)
{
	uint64_t used = hami_region_time_used(o->region);
	int64_t length = o->closed - o->opened;
	if (o->opened && length >= MS) {
		uint64_t permille = (used - o->opened_used) * 1000 / (uint64_t)length;
		permille = permille < 1 ? 1 : permille > 1000 ? 1000 : permille;
		o->duty = (3 * o->duty + (uint32_t)permille) / 4;
	}
	o->opened = steady;
	o->opened_used = used;
}

/* Writes those of `list` that are not among `others`. Returns how many. */
static size_t without(uint64_t *out, const uint64_t *list, size_t count, const uint64_t *others,
		      size_t others_count)
{
	size_t left = 0;
	for (size_t i = 0; i < count; i++) {
		size_t at = 0;
		while (at < others_count && others[at] != list[i])
			at++;
		if (at == others_count)
			out[left++] = list[i];
	}
	return left;
}

/* Pauses the contexts whose part is over, and then opens those whose part begins: never both at once. */
static bool change_contexts(struct hami_opening *o, const uint64_t *paused, size_t count)
{
	uint64_t list[2 * HAMI_CONTEXTS_MOST];
	struct hami_only only = {.contexts = list};
	only.count = without(list, paused, count, o->paused, o->paused_count);
	if (only.count && o->paused_count + only.count <= 2 * HAMI_CONTEXTS_MOST) {
		int rc = hami_channels_pause(o->slice, true, &only);
		if (rc) {
			refused(o, rc, hami_clock_steady());
			return false;
		}
		memcpy(o->paused + o->paused_count, list, only.count * sizeof *list);
		set_paused(o, o->paused, o->paused_count + only.count);
	}
	only.count = without(list, o->paused, o->paused_count, paused, count);
	if (only.count && hami_channels_pause(o->slice, false, &only))
		return false;
	set_paused(o, paused, count);
	o->refusals = o->gone = 0;
	hami_log(2, "contexts that wait for their part: %zu%s\n", count, hami_slice_place(o->slice));
	return true;
}

bool hami_opening_is(const struct hami_opening *o, bool open, const uint64_t *paused, size_t count)
{
	const bool same = count == o->paused_count &&
			  (!count || memcmp(paused, o->paused, count * sizeof *paused) == 0);
	return open == o->open && (!open || same);
}

bool hami_opening_set(struct hami_opening *o, bool open, const uint64_t *paused, size_t count)
{
	unsigned int groups = hami_objects_started_ever(o->slice);
	if (hami_opening_is(o, open, paused, count) && (open || groups == o->paused_groups))
		return true;
	if (open && o->open)
		return change_contexts(o, paused, count);
	const struct hami_only others = {.contexts = paused, .count = count, .others = true};
	int64_t begun = hami_clock_steady();
	if (!open && o->open)
		hami_meter_opened(o->slice, false, hami_clock_shared());
	int rc = hami_channels_pause(o->slice, !open, open && count ? &others : NULL);
	if (rc && !open)
		refused(o, rc, begun);
	if (rc)
		return false;
	if (open) {
		set_paused(o, paused, count);
		hami_meter_opened(o->slice, true, hami_clock_shared());
		hami_region_add_time(o->region, 0, (uint64_t)(begun - o->closed));
		hami_region_add_pause(o->region, (uint64_t)(begun - o->closed));
		note_duty(o, begun);
	} else {
		o->closed = o->open ? begun : o->closed;
		o->paused_groups = groups;
		o->refusals = o->gone = 0;
	}
	if (open != o->open)
		hami_log(2, "%s%s\n", open ? "open" : "paused", hami_slice_place(o->slice));
	o->open = open;
	return true;
}
