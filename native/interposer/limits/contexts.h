/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many contexts of this process compete for the GPU where others are on it, and which of them are open beside somebody
 * latency-critical: one at a time (arbitration/parts.h), and all others always. A context competes when for a good part of
 * the time it has work while another one has, too; contexts that work one after the other do not.
 *
 * For one thread of each slice, its keeper's: no lock. Not async-signal-safe.
 */
#ifndef HAMI_CONTEXTS_H
#define HAMI_CONTEXTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arbitration/parts.h"

/* So many are watched; more of one process have no part, and are open always. */
#define HAMI_CONTEXTS_MOST 256

struct hami_contexts {
	bool watches;       /* others are on the GPU */
	uint32_t competing; /* how many; 0 or 1: none does */
	size_t count;
	struct {
		uint64_t context;
		uint32_t worked;   /* of its samples: had work while another had, or was paused */
	} all[HAMI_CONTEXTS_MOST]; /* in the order of their making */
	uint64_t open;             /* of those that compete, which is open; 0: none competes */
	int64_t until;             /* shared: when that may change */
	size_t paused_count;
	uint64_t paused[HAMI_CONTEXTS_MOST]; /* the others */
};

/* Notes what the last sample found; `works`: of contexts of which it is not known. */
void hami_contexts_note(struct hami_contexts *c, unsigned int slice, bool works);
/* Sets, at `now`, which contexts shall be paused while the process is open. Returns until when that stays, if they go on. */
int64_t hami_contexts_plan(struct hami_contexts *c, unsigned int slice, const struct hami_terms *terms,
			   const struct hami_part *part, int64_t now);

#endif
