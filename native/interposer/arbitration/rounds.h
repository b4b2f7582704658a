/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process used of whole rounds. The GPU serves its tenants in rounds; a round of a process lasts from when it comes to
 * the engine after others until it does so again. It has its share of each, and of a part of one all or nothing. So the
 * round that is not over counts in a later step.
 *
 * Pure: no clock, no system call, no state of its own.
 */
#ifndef HAMI_ROUNDS_H
#define HAMI_ROUNDS_H
#include <stdint.h>

/* Where one lasts for longer nobody else takes turns. */
#define HAMI_ROUNDS_NS_MOST 100000000ll

/* A time, and what was used of it; ns. */
struct hami_span {
	int64_t elapsed, used;
};

/* All zeros: nothing was left out. */
struct hami_rounds {
	struct hami_span left; /* out of the last step */
};

/*
 * Returns the part of a step, of a second at most, that whole rounds had, with what the last step left out, and without the round that has `begun`;
 * all of it where that is not known (0), or lasts for too long. Nothing is lost, nor counted twice.
 */
struct hami_span hami_rounds_whole(struct hami_rounds *rounds, struct hami_span step, struct hami_span begun);

#endif
