/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/keeper.h"

#include <errno.h>
#include <string.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "arbitration/slice.h"
#include "arbitration/terms.h"
#include "arbitration/use.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "limits/channels.h"
#include "limits/charge.h"
#include "limits/contexts.h"
#include "limits/ending.h"
#include "limits/fitting.h"
#include "limits/launched.h"
#include "limits/meter.h"
#include "limits/opening.h"
#include "limits/server.h"
#include "region/budget.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

#define MS 1000000ll
#define SAMPLE_NS_MOST (2 * MS) /* between two samples, under a cap */
#define SAMPLE_NS_LEAST (MS / 2)
#define SAMPLE_NS_UNCAPPED (10 * MS)
#define COUNT_NS HAMI_ROUND_NS  /* between two counts of what was used */
#define IDLE_NS (100 * MS)      /* nothing outstanding for so long: the keeper rests */
#define IDLE_FIRST_NS (20 * MS) /* nothing outstanding for so long: what comes is counted early */
#define REST_NS (100 * MS)      /* between two looks while it rests: for work that is no launch */
#define BUSY_NS HAMI_NS_PER_S   /* for which a process counts that had work in a good part of its samples */
#define SLEEP_NS_LEAST (MS / 20)
#define WAIT_LOOK_NS (MS / 8)  /* between two looks whether a request is over */
#define RETRY_NS MS            /* until the driver is asked again for what it did not do */
#define SHUT_LOOK_NS (10 * MS) /* between two looks for new channels while the others are paused */

/* What the keeper of a slice knows. Times in ns: `steady` of hami_clock_steady(), the rest of hami_clock_shared(). */
struct keeper {
	unsigned int slice_index;
	struct hami_region *region; /* the slice's */
	struct hami_terms terms;
	struct hami_fitting fitting;
	struct hami_part part; /* of the turn, or of the rounds, among the job's or the step's processes */
	uint32_t worked;       /* of its samples, permille, as a moving mean */
	bool pauses;           /* the policy's way to keep a cap; false: timeslices alone */
	bool rests;            /* it has nothing to do */
	uint32_t busy_clients; /* of the job, that work nearly always */
	struct hami_opening opening;
	struct hami_contexts contexts;
	bool shut;      /* the budget says so */
	int64_t said;   /* shared: since when it says so */
	int64_t change; /* steady: the budget says the same until then */
	int64_t begun;  /* steady: since when it works, after IDLE_FIRST_NS without */
	int64_t counted, sampled,
		busy; /* steady: the last count and sample, and when work was last outstanding */
	int64_t due;  /* steady: since when what is open shall change; 0: it shall not */
	int64_t sample_gap;
	uint64_t random;
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Returns `gap`, between a half and one and a half of it: a program's own rhythm must not be met. */
static int64_t jittered(struct keeper *k, int64_t gap)
{
	k->random ^= k->random << 13;
	k->random ^= k->random >> 7;
	k->random ^= k->random << 17;
	return gap / 2 + (int64_t)(k->random % (uint64_t)gap);
}

/*
 * Opens the channels but those of contexts whose part it is not, or pauses them, when that is not what they are. Returns
 * false when the driver did not do it: to be tried again.
 */
static bool set_open(struct keeper *k, bool open)
{
	const bool was_open = k->opening.open;
	if (open && hami_opening_is(&k->opening, open, k->contexts.paused, k->contexts.paused_count))
		return true;
	if (!hami_opening_set(&k->opening, open, k->contexts.paused, k->contexts.paused_count))
		return false;
	const int64_t now = hami_clock_steady();
	if (open && !was_open) {
		k->busy = now; /* it was shut because it worked, and is not resting yet */
		if (k->part.count > 1)
			k->sampled = now; /* its part may be shorter than the time between two samples */
	}
	if (open && k->opening.paused_count)
		k->sampled = least(k->sampled, now + jittered(k, SAMPLE_NS_MOST));
	return true;
}

/* Returns how many contexts divide the process's timeslice. */
static uint32_t dividing_contexts(const struct keeper *k)
{
	return k->pauses && k->contexts.open ? 1 : k->contexts.competing;
}

static void set_timeslices(struct keeper *k)
{
	hami_fitting_set(&k->fitting, &k->terms, dividing_contexts(k), k->rests, hami_clock_shared());
}

static void read_terms(struct keeper *k)
{
	k->terms = hami_terms_read(k->region->job, k->region->step);
	struct hami_crowd crowd = hami_region_crowd(k->region, hami_clock_shared() - BUSY_NS);
	k->part = k->terms.latency_others ? crowd.of_job : crowd.of_step;
	if (k->terms.of_server)
		k->part = (struct hami_part){0};
	k->busy_clients = k->terms.of_server ? crowd.of_job.count : 0;
	if (k->pauses)
		crowd.sharers = hami_part_sharers(&k->terms, &k->part, crowd.sharers);
	k->fitting.sharers = hami_part_settled(k->fitting.sharers, crowd.sharers);
	set_timeslices(k);
}

/* Counts what was used by the terms as they are now, takes it from the budgets, and learns until when they say the same. */
static void count(struct keeper *k, int64_t steady)
{
	int64_t shared = hami_clock_shared(), wait;
	read_terms(k);
	struct hami_terms of_job = k->terms; /* the job's share, by the step's policy */
	of_job.cores_percent = hami_terms_read(k->region->job, k->region->job).cores_percent;
	const uint32_t others_us = hami_fitting_others_us(&k->fitting, &k->terms);
	const struct hami_lengths lengths = {.own_slice = 1000ll * k->fitting.timeslice,
					     .others_slice = hami_slice_others(&k->fitting.slice, others_us),
					     .others_longest = 1000ll * others_us};
	struct hami_seen seen = {.now = shared,
				 .elapsed = steady - k->counted,
				 .caps = k->terms.others_capped + (hami_terms_cap(&k->terms) < 100),
				 .capped = hami_terms_cap(&k->terms) < 100,
				 .others_least_percent = k->terms.others_least_percent,
				 .other_percent = hami_terms_other_percent(&k->terms, k->fitting.sharers),
				 .can_yield = k->pauses && k->terms.turn_length};
	struct hami_presence presence = {.elapsed = seen.elapsed, .slice = 1000ll * k->fitting.timeslice};
	hami_meter_count(k->slice_index, shared, &lengths, &seen, &presence);
	hami_region_note_filled(k->region, hami_meter_filled(k->slice_index));
	k->fitting.server_used += seen.used;
	if (k->busy_clients > 1)
		seen.used /= k->busy_clients; /* the job's other clients count the same time */
	struct hami_spent spent = {.since = k->counted,
				   .used = seen.used,
				   .job_cap = k->pauses ? hami_terms_cap(&of_job) : 100,
				   .step_cap = k->pauses ? hami_terms_cap(&k->terms) : 100,
				   .clock = hami_clock_steady};
	spent.contended = hami_meter_contended(k->slice_index, shared, hami_terms_has_long_rounds(&k->terms));
	seen.held_back = k->shut;
	spent.has_floor = k->terms.latency;
	if (k->terms.latency)
		spent.costs = hami_use_costs(&presence);
	spent.in_step = k->terms.in_step;
	spent.duty = k->opening.duty;
	k->shut = hami_region_spend(k->region, &spent, &wait);
	k->said = seen.held_back == k->shut ? k->said : shared;
	seen.held_back = seen.held_back || k->shut;
	hami_fitting_count(&k->fitting, &k->terms, &seen, of_job.cores_percent, dividing_contexts(k));
	k->counted = steady;
	k->change = wait > HAMI_NS_PER_S ? steady + HAMI_NS_PER_S : steady + wait;
	int64_t gap = wait == INT64_MAX ? SAMPLE_NS_UNCAPPED : hami_budget_half(spent.step_cap) / 4;
	k->sample_gap = wait == INT64_MAX       ? gap
			: gap < SAMPLE_NS_LEAST ? SAMPLE_NS_LEAST
			: gap > SAMPLE_NS_MOST  ? SAMPLE_NS_MOST
						: gap;
}

/*
 * Rests: nothing is outstanding. A launch ends that at once; other work is noticed after REST_NS, and then counts
 * from the last look on.
 */
static void rest(struct keeper *k)
{
	const int64_t begun = hami_clock_steady();
	hami_log(2, "nothing to do on the GPU; the keeper rests%s\n", hami_slice_place(k->slice_index));
	hami_ending_works(k->slice_index, false);
	k->rests = true;
	for (;;) {
		if (hami_launched_wait(k->slice_index, hami_objects_started(k->slice_index)
							       ? jittered(k, REST_NS)
							       : HAMI_NS_PER_S))
			break;
		read_terms(k);
		if (hami_objects_started(k->slice_index) &&
		    hami_meter_sample(k->slice_index, hami_clock_shared()))
			break;
		hami_meter_begin(k->slice_index, hami_clock_shared());
	}
	if (hami_launched(k->slice_index)) {
		hami_region_note_use(k->region);
		hami_meter_begin(k->slice_index, hami_clock_shared());
	}
	hami_ending_works(k->slice_index, true);
	k->rests = false;
	k->busy = k->begun = k->counted = k->sampled = hami_clock_steady();
	k->change = k->busy;
	hami_fitting_rested(&k->fitting, k->busy - begun, (k->busy - begun) / SAMPLE_NS_MOST);
	read_terms(k);
}

/*
 * Returns the time between two counts at most. What a pause left to count is counted once, soon. A process that is
 * killed takes with it no more than what it was counted before, or what is used between two counts of several.
 */
static int64_t count_gap(const struct keeper *k)
{
	bool uses = k->opening.open || k->counted - k->opening.closed < HAMI_COUNT_NS_SEVERAL;
	bool several = k->pauses && uses && hami_region_processes(k->region) > 1;
	int64_t worked = k->counted - k->begun; /* negative: not counted since */
	return several || worked < HAMI_COUNT_NS_SEVERAL ? HAMI_COUNT_NS_SEVERAL : least(worked, COUNT_NS);
}

/* Returns whether the channels, which shall change, stay as they are until somebody's request is over. */
static bool waits_for_request(struct keeper *k, int64_t steady)
{
	static const struct hami_visit somebody = {.stay = 1, .usual = HAMI_REQUEST_LONGEST};
	k->due = k->due ? k->due : steady;
	if (!hami_terms_waits(&k->terms, !k->opening.open, steady - k->due, &somebody))
		return false;
	count(k, steady);
	uint32_t pid;
	struct hami_visit other = hami_switches_other(k->slice_index, hami_clock_shared(), &pid);
	if (k->opening.open && pid && hami_region_of_pid(k->region, pid) != UINT64_MAX)
		other.stay = 0; /* a process of its own job: nobody latency-critical */
	return hami_terms_waits(&k->terms, !k->opening.open, steady - k->due, &other);
}

static void sample(struct keeper *k, int64_t steady)
{
	const int64_t shared = hami_clock_shared();
	const bool works = hami_meter_sample(k->slice_index, shared);
	hami_contexts_note(&k->contexts, k->slice_index, works);
	k->worked = hami_part_worked(k->worked, works);
	if (k->worked >= HAMI_PART_BUSY)
		hami_region_note_busy(k->region, shared);
	if (works) {
		if (steady - k->busy > IDLE_FIRST_NS)
			k->begun = steady;
		k->busy = steady;
		hami_region_note_use(k->region);
	}
	k->sampled =
		steady + jittered(k, k->contexts.open ? least(k->sample_gap, SAMPLE_NS_MOST) : k->sample_gap);
}

/* One look: measures and decides. Returns when to look again, steady. */
static int64_t look(struct keeper *k)
{
	int64_t steady = hami_clock_steady(), until, part, in_step;
	if (k->opening.open && steady >= k->sampled)
		sample(k, steady);
	if (steady >= k->change || steady - k->counted >= count_gap(k) ||
	    hami_clock_shared() >= hami_fitting_next(&k->fitting))
		count(k, steady);
	int64_t shared = hami_clock_shared();
	bool turn = hami_terms_turn(&k->terms, hami_fitting_yields(&k->fitting, &k->terms),
				    hami_fitting_longer(&k->fitting, &k->terms), shared, &until);
	turn = hami_part_open(&k->terms, &k->part, shared, &part) && turn;
	bool open = hami_terms_open(&k->terms, k->shut, k->said, shared, &in_step);
	until = least(until, least(part, in_step));
	const int64_t context = hami_contexts_plan(&k->contexts, k->slice_index, &k->terms, &k->part, shared);
	if (k->pauses)
		until = least(until, context);
	else /* they divide the timeslice all the same */
		k->contexts.paused_count = 0;
	int64_t turn_ends = until == INT64_MAX ? INT64_MAX : steady + (until - shared);
	bool wanted = !k->pauses || (open && turn);
	if (!hami_opening_is(&k->opening, wanted, k->contexts.paused, k->contexts.paused_count) &&
	    waits_for_request(k, steady))
		return steady + WAIT_LOOK_NS;
	k->due = 0;
	if (k->terms.of_server && !wanted)
		wanted = !hami_server_pauses(k->slice_index, until);
	bool done = set_open(k, wanted);
	if (k->terms.of_server && k->opening.open && hami_server_opens(k->slice_index, shared))
		set_timeslices(k);
	int64_t step = hami_fitting_next(&k->fitting);
	step = step == INT64_MAX ? INT64_MAX : steady + (step - shared);
	int64_t next = least(least(k->change, k->counted + count_gap(k)), least(turn_ends, step));
	next = least(next, k->opening.open ? k->sampled : steady + SHUT_LOOK_NS);
	return done ? next : steady + RETRY_NS;
}

int hami_keep(unsigned int slice, bool pauses)
{
	struct keeper k = {
		.slice_index = slice,
		.region = hami_slice_region(slice),
		.fitting = {.slice_index = slice, .region = hami_slice_region(slice)},
		.pauses = pauses,
		.opening = {.slice = slice, .region = hami_slice_region(slice), .open = true, .duty = 1000},
		.sample_gap = SAMPLE_NS_MOST,
		.random = (uint64_t)hami_clock_steady() | 1};
	hami_memory_charge(hami_only(slice),
			   0); /* a place among the job's processes, for one that holds no device memory */
	hami_meter_begin(k.slice_index, hami_clock_shared());
	hami_ending_works(k.slice_index, true);
	k.busy = k.begun = k.counted = k.sampled = k.change = hami_clock_steady();
	read_terms(&k);
	while (k.opening.refusals < HAMI_REFUSALS_IN_A_ROW) {
		int64_t next = look(&k), now = hami_clock_steady();
		const bool all_open = k.opening.open && !k.opening.paused_count;
		if (all_open && (now - k.busy > IDLE_NS || !hami_objects_started(k.slice_index))) {
			count(&k, now);
			rest(&k);
			continue;
		}
		int64_t sleep = next - now > SLEEP_NS_LEAST ? next - now : SLEEP_NS_LEAST;
		if (hami_ending_sleep(k.slice_index, sleep)) {
			count(&k, hami_clock_steady());
			hami_ending_counted(k.slice_index);
		}
	}
	return k.opening.error;
}
