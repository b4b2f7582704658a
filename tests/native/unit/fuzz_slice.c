/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule that fits timeslices (arbitration/slice.h) with any numbers, one step after another: no undefined
 * arithmetic, timeslices between the shortest and the longest, and a next step that is neither past nor far.
 */
#include <stdint.h>
#include <string.h>

#include "arbitration/slice.h"
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct step {
	struct hami_seen seen;
	uint32_t cores_percent, longest_us;
	int64_t stay, timeslice;
};

static void judge(const struct hami_slice *slice, const struct step *s)
{
	const uint32_t least = s->longest_us < HAMI_SLICE_US_LEAST ? s->longest_us : HAMI_SLICE_US_LEAST;
	const int64_t now = s->seen.now, next = hami_slice_next(slice, now);
	CHECK(slice->mode <= HAMI_SLICE_YIELDS);
	CHECK(next > now || next == INT64_MAX);
	if (slice->mode != HAMI_SLICE_SHARES || slice->level.now)
		CHECK(now > INT64_MAX - HAMI_LOOK_EVERY_NS || next <= now + HAMI_LOOK_EVERY_NS);
	else
		CHECK(next == INT64_MAX);
	CHECK(hami_slice_us(slice, s->longest_us) >= least &&
	      hami_slice_us(slice, s->longest_us) <= s->longest_us);
	int64_t others = hami_slice_others(slice, s->longest_us);
	CHECK(others >= 1000ll * least && others <= 1000ll * s->longest_us);
	int64_t unused = hami_slice_unused(s->stay, s->timeslice);
	CHECK(unused >= 0 && unused <= 1000);
	CHECK(hami_slice_tiny(s->timeslice) > 0);
	CHECK(hami_slice_longer(slice) >= 0 && hami_slice_longer(slice) <= HAMI_LONGER_NS_MOST);
}

static void go_on(struct hami_slice *slice, const struct step *s)
{
	hami_slice_step(slice, &s->seen, s->cores_percent, s->longest_us);
	judge(slice, s);
	CHECK(s->seen.caps <= 4 || (slice->mode == HAMI_SLICE_SHARES && !slice->level.now));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
	const size_t count = sizeof extremes / sizeof *extremes;
	struct hami_slice slice = {0};
	struct step s = {0};
	for (size_t at = 0; at < size; at += 48) {
		/* Truths hold any byte here, and 0 or 1 in a process. */
		memcpy((uint8_t *)&s + at % sizeof s, data + at,
		       size - at < sizeof s - at % sizeof s ? size - at : sizeof s - at % sizeof s);
		s.seen.held_back = data[at] & 1;
		s.seen.can_yield = !(data[at] & 2);
		s.seen.capped = data[at] & 4;
		go_on(&slice, &s);
		s.seen.elapsed &= 0x7ffffff; /* up to 0.13 s, as they come */
		s.seen.caps %= 3;
		s.cores_percent %= 101;
		for (int i = 0; i < 20;
		     i++, s.seen.now = (int64_t)((uint64_t)s.seen.now + (uint64_t)s.seen.elapsed))
			go_on(&slice, &s);
	}
	for (size_t i = 0; i < count * count; i++) {
		s.seen.used = s.seen.stays.unused = s.seen.stays.others = s.timeslice = extremes[i % count];
		s.seen.now = s.stay = extremes[i / count];
		s.seen.elapsed = extremes[(i + size) % count];
		go_on(&slice, &s);
		s.seen.elapsed = 1000 + (int64_t)i;
		go_on(&slice, &s);
	}
	return 0;
}
