/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much shorter a tenant's timeslices are than the longest of its terms, by what it used of its share (slice.h).
 *
 * Each change of a timeslice makes the GPU begin its round anew (docs/adr/119), so few changes are better than small
 * ones: as many levels at once as what was used since the last change is from what it is to be.
 *
 * Pure: no clock, no system call, no state of its own. Times in ns.
 */
#ifndef HAMI_LEVEL_H
#define HAMI_LEVEL_H
#include <stdbool.h>
#include <stdint.h>

/* No timeslice is made shorter: a change of tenant costs about 0.2 ms of a full chip. */
#define HAMI_SLICE_US_LEAST 500
/* Timeslices are shorter by 2 to the power of an eighth of the level. */
#define HAMI_LEVELS_OF_A_HALF 8
#define HAMI_LEVEL_MOST (8 * HAMI_LEVELS_OF_A_HALF) /* the longest of a class, 100 ms, becomes the shortest */
#define HAMI_LEVELS_AT_ONCE (HAMI_LEVELS_OF_A_HALF / 2) /* that they become shorter */

/* All zeros: the longest timeslices. */
struct hami_level {
	uint32_t now;  /* the level */
	uint32_t told; /* that of the timeslices in the last step */
	int64_t since; /* for so long they have had it; what is long ago weighs less */
	int64_t used;  /* since then */
};

/* Takes what was used in a step of `elapsed`, in which the timeslices came to have this level, or had it. */
void hami_level_tell(struct hami_level *level, uint32_t of_timeslices, int64_t used, int64_t elapsed);

/*
 * Fits the level to what was used of the share, ns a second, since it is what it is. `may_shorten`: somebody needs
 * shorter timeslices; `served`: nobody does.
 */
void hami_level_fit(struct hami_level *level, int64_t share, bool may_shorten, bool served);

/* Returns the timeslice at a level, microseconds, where `longest_us` is the one of the terms; 0 stays 0. */
uint32_t hami_level_us(uint32_t level, uint32_t longest_us);

#endif
