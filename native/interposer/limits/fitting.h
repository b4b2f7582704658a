/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeslices of a slice's channels, as its keeper fits them to the others on the GPU (arbitration/slice.h, greed.h).
 *
 * For the keeper's thread alone: no lock, and none is held over an ioctl. Not async-signal-safe.
 */
#ifndef HAMI_FITTING_H
#define HAMI_FITTING_H
#include <stdbool.h>
#include <stdint.h>

#include "arbitration/greed.h"
#include "arbitration/slice.h"
#include "arbitration/terms.h"
#include "region/region.h"

/* `step` and `due` of hami_clock_shared(). All zeros but the first two at the beginning. */
struct hami_fitting {
	unsigned int slice_index;
	struct hami_region *region; /* the slice's */
	struct hami_slice slice;
	struct hami_greed greed;
	/* Since the timeslice was last fitted, and what the job had used then; `work` with rests. */
	struct hami_seen seen;
	struct hami_work work;
	uint64_t job_used, work_used;
	int64_t server_used; /* by the MPS server */
	int64_t step;        /* the next fit at the latest */
	int64_t due; /* when the channels get the timeslices that they shall have; INT64_MAX: they have them */
	uint32_t longest_us; /* the timeslice of the terms */
	uint32_t sharers;    /* processes that divide it, permille */
	uint32_t timeslice;  /* us, that the channels have */
	uint32_t copy_timeslice;
	unsigned int groups, copying;           /* that have them */
	bool no_timeslices, no_copy_timeslices; /* the driver refuses them */
};

/*
 * Sets the timeslices that follow from the terms, of a process with so many contexts that compete: the first ones at
 * once, later ones at the next instant for that (hami_slice_instant()). `shared`: now.
 */
void hami_fitting_set(struct hami_fitting *f, struct hami_terms *terms, uint32_t contexts, bool rests,
		      int64_t shared);

/* Takes what was seen since the last count, fits the timeslice when that is enough. `job_cores`: of the whole job, percent. */
void hami_fitting_count(struct hami_fitting *f, struct hami_terms *terms, const struct hami_seen *seen,
			uint32_t job_cores, uint32_t contexts);

/* Returns when hami_fitting_count() has to be called at the latest, by hami_clock_shared(). */
int64_t hami_fitting_next(const struct hami_fitting *f);

/* Notes that the process had nothing to do for so long, ns, and works again. `looks`: how often that would have been seen. */
void hami_fitting_rested(struct hami_fitting *f, int64_t rested, int64_t looks);

/* Returns whether the tenant works in its turn only, or as greed.h says. */
bool hami_fitting_yields(const struct hami_fitting *f, const struct hami_terms *terms);
/* Returns by how much longer than its share of the round its turn is, ns. */
int64_t hami_fitting_longer(const struct hami_fitting *f, const struct hami_terms *terms);

/* Returns the shortest timeslice of the terms of others, us. The other processes of the job are others, too. */
uint32_t hami_fitting_others_us(const struct hami_fitting *f, const struct hami_terms *terms);

#endif
