/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/fitting.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "limits/channels.h"
#include "limits/server.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

#define FIT_NS (HAMI_ROUND_NS * 3 / 4) /* between two fits of the timeslice */

/* Copies are no part of a share: they are only kept from delaying somebody latency-critical. */
static void set_copies(struct hami_fitting *f, const struct hami_terms *terms)
{
	const unsigned int groups = hami_objects_copying_ever(f->slice_index);
	const uint32_t wanted = hami_terms_copy_timeslice_us(terms);
	if (f->no_copy_timeslices || (wanted == f->copy_timeslice && (!wanted || groups == f->copying)))
		return;
	int rc = hami_channels_copy_timeslice(f->slice_index, wanted);
	if (rc == -EAGAIN)
		return; /* until the next look */
	f->no_copy_timeslices = rc != 0;
	if (rc)
		hami_log(1, "the driver refuses timeslices of copies%s (%s)\n",
			 hami_slice_place(f->slice_index), strerror(-rc));
	f->copy_timeslice = wanted;
	f->copying = groups;
}

void hami_fitting_set(struct hami_fitting *f, struct hami_terms *terms, uint32_t contexts, bool rests,
		      int64_t shared)
{
	set_copies(f, terms);
	unsigned int groups = hami_objects_started_ever(f->slice_index);
	terms->greedy = f->greed.greedy;
	f->longest_us = hami_terms_timeslice_us(terms, f->sharers * (contexts > 1 ? contexts : 1));
	uint32_t wanted = hami_slice_us(&f->slice, f->longest_us);
	if (terms->of_server)
		wanted = hami_server_timeslice(f->slice_index, rests ? f->longest_us : wanted);
	if (f->no_timeslices || (wanted == f->timeslice && groups == f->groups)) {
		f->due = INT64_MAX;
		return;
	}
	if (f->due == INT64_MAX)
		f->due = hami_slice_instant(shared);
	if (!hami_slice_instant_came(f->due, shared))
		return;
	f->due = INT64_MAX;
	int rc = 0;
	if (!wanted && f->timeslice)
		rc = hami_channels_timeslice(f->slice_index, HAMI_DRIVERS_SLICE_US);
	if (!rc)
		rc = hami_channels_timeslice(f->slice_index, wanted);
	if (rc) {
		hami_log(terms->of_server ? 1 : 0,
			 "the driver refuses timeslices%s (%s); the GPU's own turns stay\n",
			 hami_slice_place(f->slice_index), strerror(-rc));
		f->no_timeslices = true;
	}
	if (wanted != f->timeslice)
		hami_log(2, "timeslices of %u us%s\n", wanted, hami_slice_place(f->slice_index));
	f->timeslice = wanted;
	f->groups = groups;
}

/* Learns whether the job wants more than it asked for, and says so to root. */
static void learn_greed(struct hami_fitting *f, const struct hami_terms *terms, int64_t shared,
			uint32_t job_cores)
{
	const uint64_t used = hami_region_time_used(f->region);
	f->work.used = (int64_t)(used - f->work_used);
	f->work_used = used;
	hami_greed_step(&f->greed, &f->work, hami_terms_latency_share(terms), job_cores);
	f->work = (struct hami_work){0};
	/* A step that is held to a part of its job's cores has work all the time, however few of them the job uses. */
	const bool in_part = terms->policy == HAMI_POLICY_CAP && terms->cores_percent < job_cores;
	if (in_part ? f->greed.over_cores : f->greed.more)
		hami_region_note_more(f->region, shared);
}

/* For whoever wants to know why a tenant has what it has; as JSON. */
static void log_fit(const struct hami_fitting *f)
{
	static const char *const modes[] = {"shares", "looks", "tries", "yields"};
	const struct hami_slice *slice = &f->slice;
	hami_log(3,
		 "{\"at_ms\": %" PRId64
		 ", \"slice\": %u, \"mode\": \"%s\", \"level\": %u, \"elapsed_us\": %" PRId64
		 ", \"used_us\": %" PRId64 ", \"longer_us\": %" PRId64 ", \"missed_us\": %" PRId64
		 ", \"wary_ms\": %" PRId64 "}\n",
		 f->seen.now / 1000000, f->slice_index, modes[slice->mode & 3], slice->level.now,
		 f->seen.elapsed / 1000, f->seen.used / 1000, hami_slice_longer(slice) / 1000,
		 slice->missed / 1000, slice->wary / 1000000);
}

void hami_fitting_count(struct hami_fitting *f, struct hami_terms *terms, const struct hami_seen *seen,
			uint32_t job_cores, uint32_t contexts)
{
	const struct hami_work work = {.elapsed = seen->elapsed,
				       .others = seen->stays.others,
				       .samples = seen->samples,
				       .outstanding = seen->outstanding};
	hami_seen_add(&f->seen, seen);
	hami_work_add(&f->work, &work);
	/* One that is decided on is set before another is decided on. */
	if ((f->seen.elapsed < FIT_NS || f->due != INT64_MAX) && seen->now < f->step)
		return;
	const uint64_t used = hami_region_time_used(f->region);
	/* Of the job, not of this process alone; or of the server. */
	f->seen.used = terms->of_server ? f->server_used : (int64_t)(used - f->job_used);
	f->job_used = used;
	f->server_used = 0;
	if (terms->of_server || hami_region_processes(f->region) > 1)
		f->seen.begun = (struct hami_span){0}; /* rounds of a process are none of the job's */
	learn_greed(f, terms, seen->now, job_cores);
	const uint32_t mode = f->slice.mode;
	if (!hami_terms_others_timeslice_us(terms))
		f->slice = (struct hami_slice){0};
	else
		hami_slice_step(&f->slice, &f->seen, terms->cores_percent, f->longest_us);
	log_fit(f);
	f->seen = (struct hami_seen){0};
	f->step = hami_slice_next(&f->slice, seen->now);
	if (f->slice.mode != mode)
		f->due = seen->now; /* looks and tries are at the same times for all as well */
	hami_fitting_set(f, terms, contexts, false, seen->now);
}

int64_t hami_fitting_next(const struct hami_fitting *f)
{
	return f->due < f->step ? f->due : f->step;
}

void hami_fitting_rested(struct hami_fitting *f, int64_t rested, int64_t looks)
{
	f->seen = (struct hami_seen){0};
	f->job_used = hami_region_time_used(f->region);
	f->work.elapsed += rested;
	f->work.samples += (uint32_t)looks;
}

bool hami_fitting_yields(const struct hami_fitting *f, const struct hami_terms *terms)
{
	if (terms->latency)
		return terms->latency_others && f->greed.yields;
	return hami_slice_yields(&f->slice);
}

int64_t hami_fitting_longer(const struct hami_fitting *f, const struct hami_terms *terms)
{
	return terms->latency ? 0 : hami_slice_longer(&f->slice);
}

uint32_t hami_fitting_others_us(const struct hami_fitting *f, const struct hami_terms *terms)
{
	uint32_t us = hami_terms_others_timeslice_us(terms);
	return f->sharers > HAMI_PART_FULL && f->longest_us < us && !terms->of_server ? f->longest_us : us;
}
