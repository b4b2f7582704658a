/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether this process's channels on a slice's GPU are open: all of them, all but those of some contexts, or none. Counts
 * how long they were not, and how much the job used of the time in which they were.
 *
 * For one thread of each slice, its keeper's: no lock, and none is held over an ioctl. Not async-signal-safe.
 */
#ifndef HAMI_OPENING_H
#define HAMI_OPENING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits/contexts.h"
#include "region/region.h"

#define HAMI_REFUSALS_IN_A_ROW 3

/* Begin with the slice, its region, `open` and the duty. Times: steady. */
struct hami_opening {
	unsigned int slice;
	struct hami_region *region;
	bool open;
	int64_t closed;             /* since when it is not open */
	int64_t opened;             /* since when it is; 0: it never was shut */
	uint64_t opened_used;       /* by the job until then */
	uint32_t duty;              /* of the time for which it was open, what the job used, permille */
	unsigned int paused_groups; /* how many there ever were when they were paused */
	int refusals, gone, error;  /* to pause, in a row; the last refusal's */
	size_t paused_count;        /* of contexts that are paused while it is open */
	uint64_t paused[2 * HAMI_CONTEXTS_MOST];
};

/*
 * Opens the channels, but those of these contexts, or pauses all, when that is not what they are; pauses those that came
 * since all others were. Returns false when the driver did not do it: to be tried again.
 */
bool hami_opening_set(struct hami_opening *o, bool open, const uint64_t *paused, size_t count);
/* Returns whether that is what they are. */
bool hami_opening_is(const struct hami_opening *o, bool open, const uint64_t *paused, size_t count);

#endif
