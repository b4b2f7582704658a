/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/keeper.h"

#include <errno.h>
#include <string.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "arbitration/slice.h"
#include "arbitration/terms.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "limits/channels.h"
#include "limits/charge.h"
#include "limits/ending.h"
#include "limits/launched.h"
#include "limits/meter.h"
#include "region/budget.h"
#include "region/glance.h"
#include "region/latency.h"
#include "region/process.h"
#include "region/times.h"

#define MS 1000000ll
#define DRIVERS_TIMESLICE_US 2048u /* libcuda's */
#define SAMPLE_NS_MOST (2 * MS)    /* between two samples, under a cap */
#define SAMPLE_NS_LEAST (MS / 2)
#define SAMPLE_NS_UNCAPPED (10 * MS)
#define COUNT_NS HAMI_ROUND_NS         /* between two counts of what was used */
#define FIT_NS (HAMI_ROUND_NS * 3 / 4) /* between two fits of the timeslice */
#define IDLE_NS (100 * MS)             /* nothing outstanding for so long: the keeper rests */
#define IDLE_FIRST_NS (20 * MS)        /* nothing outstanding for so long: what comes is counted early */
#define REST_NS (100 * MS)             /* between two looks while it rests: for work that is no launch */
#define BUSY_PERMILLE 250              /* of its samples found work: so much is a good part of its time */
#define BUSY_NS HAMI_NS_PER_S          /* for which that counts */
#define SLEEP_NS_LEAST (MS / 20)
#define WAIT_LOOK_NS (MS / 8) /* between two looks whether a request is over */
#define REFUSALS_IN_A_ROW 3
#define GONE_IN_A_ROW 100      /* pauses that channels foiled which were just freed */
#define RETRY_NS MS            /* until the driver is asked again for what it did not do */
#define SHUT_LOOK_NS (10 * MS) /* between two looks for new channels while the others are paused */

/* What the keeper of a slice knows. Times in ns: `steady` of hami_clock_steady(), the rest of hami_clock_shared(). */
struct keeper {
	unsigned int slice_index;
	struct hami_region *region; /* the slice's */
	struct hami_terms terms;
	struct hami_slice slice;
	struct hami_part part; /* of the turn, among the job's processes */
	uint32_t worked;       /* of its samples, permille, as a moving mean */
	struct hami_seen seen; /* since the timeslice was last fitted */
	uint32_t longest_us;   /* the timeslice of the terms */
	uint32_t processes;    /* of the step, that divide it */
	uint64_t job_used;     /* by the last count */
	int64_t step;          /* shared: the next count at the latest, for the timeslice's sake */
	bool pauses;           /* the policy's way to keep a cap; false: timeslices alone */
	bool open;             /* the channels are enabled */
	bool shut;             /* the budget says so */
	int64_t said;          /* shared: since when it says so */
	int64_t change;        /* steady: the budget says the same until then */
	int64_t begun;         /* steady: since when it works, after IDLE_FIRST_NS without */
	int64_t counted, sampled,
		busy;         /* steady: the last count and sample, and when work was last outstanding */
	int64_t closed;       /* steady: since when it is not open */
	int64_t due;          /* steady: since when that shall change; 0: it shall not */
	int64_t opened;       /* steady: since when it is; 0: it never was shut */
	uint64_t opened_used; /* by the job until then */
	uint32_t duty;        /* of the time for which it was open, what the job used, permille */
	int64_t sample_gap;
	uint64_t random;
	uint32_t timeslice;
	unsigned int groups;        /* that have it */
	bool no_timeslices;         /* the driver refuses them */
	unsigned int paused_groups; /* how many there ever were when they were paused */
	int refusals, gone, error;  /* to pause, in a row; the last refusal's */
};

static void set_timeslice(struct keeper *k)
{
	unsigned int groups = hami_objects_started_ever(k->slice_index);
	k->processes = hami_region_step_processes(k->region);
	k->longest_us = hami_terms_timeslice_us(&k->terms, k->processes);
	uint32_t wanted = hami_slice_us(&k->slice, k->longest_us);
	if (k->no_timeslices || (wanted == k->timeslice && groups == k->groups))
		return;
	int rc = 0;
	if (!wanted && k->timeslice)
		rc = hami_channels_timeslice(k->slice_index, DRIVERS_TIMESLICE_US);
	if (!rc)
		rc = hami_channels_timeslice(k->slice_index, wanted);
	if (rc) {
		hami_log(0, "the driver refuses timeslices%s (%s); the GPU's own turns stay\n",
			 hami_slice_place(k->slice_index), strerror(-rc));
		k->no_timeslices = true;
	}
	if (wanted != k->timeslice)
		hami_log(2, "timeslices of %u us%s\n", wanted, hami_slice_place(k->slice_index));
	k->timeslice = wanted;
	k->groups = groups;
}

/* After a pause that was refused: some channels may be paused. What cannot be opened now is tried again. */
static void refused(struct keeper *k, int rc, int64_t steady)
{
	if (rc != -EAGAIN || ++k->gone >= GONE_IN_A_ROW) {
		k->refusals++;
		k->error = rc;
	}
	if (!k->open)
		return;
	if (hami_channels_pause(k->slice_index, false) == 0) {
		hami_meter_opened(k->slice_index, true, hami_clock_shared());
		return;
	}
	k->open = false;
	k->closed = steady;
}

static uint64_t job_used(const struct keeper *k)
{
	return __atomic_load_n(&k->region->usage->head.time_used, __ATOMIC_RELAXED);
}

/* Notes, at an opening, what the job used since the last one, of the time for which it was open: as a moving mean. */
static void note_duty(struct keeper *k, int64_t steady)
{
	uint64_t used = job_used(k);
	int64_t length = k->closed - k->opened;
	if (k->opened && length >= MS) {
		uint64_t permille = (used - k->opened_used) * 1000 / (uint64_t)length;
		permille = permille < 1 ? 1 : permille > 1000 ? 1000 : permille;
		k->duty = (3 * k->duty + (uint32_t)permille) / 4;
	}
	k->opened = steady;
	k->opened_used = used;
}

/*
 * Opens or pauses the channels, when that is not what they are, and pauses those that came since the others were.
 * Returns false when the driver did not do it: to be tried again.
 */
static bool set_open(struct keeper *k, bool open)
{
	unsigned int groups = hami_objects_started_ever(k->slice_index);
	if (open == k->open && (open || groups == k->paused_groups))
		return true;
	int64_t begun = hami_clock_steady();
	if (!open && k->open)
		hami_meter_opened(k->slice_index, false, hami_clock_shared());
	int rc = hami_channels_pause(k->slice_index, !open);
	if (rc && !open)
		refused(k, rc, begun);
	if (rc)
		return false;
	if (open) {
		hami_meter_opened(k->slice_index, true, hami_clock_shared());
		hami_region_add_time(k->region, 0, (uint64_t)(begun - k->closed));
		hami_region_add_pause(k->region, (uint64_t)(begun - k->closed));
		k->busy = begun; /* it was shut because it worked, and is not resting yet */
		if (k->part.count > 1)
			k->sampled = begun; /* its part may be shorter than the time between two samples */
		note_duty(k, begun);
	} else {
		k->closed = k->open ? begun : k->closed;
		k->paused_groups = groups;
		k->refusals = k->gone = 0;
	}
	if (open != k->open)
		hami_log(2, "%s%s\n", open ? "open" : "paused", hami_slice_place(k->slice_index));
	k->open = open;
	return true;
}

/* Fits the timeslice to the others on the GPU, when enough has been seen of them: `seen` since the last count. */
static void fit_timeslice(struct keeper *k, const struct hami_seen *seen)
{
	hami_seen_add(&k->seen, seen);
	if (k->seen.elapsed < FIT_NS && seen->now < k->step)
		return;
	uint64_t used = job_used(k);
	k->seen.used = (int64_t)(used - k->job_used); /* of the job, not of this process alone */
	k->job_used = used;
	if (!hami_terms_others_timeslice_us(&k->terms))
		k->slice = (struct hami_slice){0};
	else
		hami_slice_step(&k->slice, &k->seen, k->terms.cores_percent, k->longest_us);
	k->seen = (struct hami_seen){0};
	k->step = hami_slice_next(&k->slice, seen->now);
	set_timeslice(k);
}

/* Returns the shortest timeslice of the terms of others, us. The other processes of the job are others, too. */
static uint32_t others_timeslice_us(const struct keeper *k)
{
	uint32_t us = hami_terms_others_timeslice_us(&k->terms);
	return k->processes > 1 && k->longest_us < us ? k->longest_us : us;
}

/* Counts what was used, takes it from the budgets, and learns until when they say the same. */
static void count(struct keeper *k, int64_t steady)
{
	int64_t shared = hami_clock_shared(), wait;
	struct hami_terms of_job = k->terms; /* the job's share, by the step's policy */
	of_job.cores_percent = hami_terms_read(k->region->job, k->region->job).cores_percent;
	const uint32_t others_us = others_timeslice_us(k);
	const struct hami_lengths lengths = {.own_slice = 1000ll * k->timeslice,
					     .others_slice = hami_slice_others(&k->slice, others_us),
					     .others_longest = 1000ll * others_us};
	struct hami_seen seen = {.now = shared,
				 .elapsed = steady - k->counted,
				 .caps = k->terms.others_capped + (hami_terms_cap(&k->terms) < 100),
				 .capped = hami_terms_cap(&k->terms) < 100,
				 .others_least_percent = k->terms.others_least_percent,
				 .other_percent = hami_terms_other_percent(&k->terms, k->processes),
				 .can_yield = k->pauses && k->terms.turn_length};
	hami_meter_count(k->slice_index, shared, &lengths, &seen);
	struct hami_spent spent = {.since = k->counted,
				   .used = seen.used,
				   .job_cap = k->pauses ? hami_terms_cap(&of_job) : 100,
				   .step_cap = k->pauses ? hami_terms_cap(&k->terms) : 100,
				   .clock = hami_clock_steady};
	spent.contended = hami_meter_contended(k->slice_index, shared);
	seen.held_back = k->shut;
	spent.has_floor = k->terms.latency;
	spent.in_step = k->terms.in_step;
	spent.duty = k->duty;
	k->shut = hami_region_spend(k->region, &spent, &wait);
	k->said = seen.held_back == k->shut ? k->said : shared;
	seen.held_back = seen.held_back || k->shut;
	fit_timeslice(k, &seen);
	k->counted = steady;
	k->change = wait > HAMI_NS_PER_S ? steady + HAMI_NS_PER_S : steady + wait;
	int64_t gap = wait == INT64_MAX ? SAMPLE_NS_UNCAPPED : hami_budget_half(spent.step_cap) / 4;
	k->sample_gap = wait == INT64_MAX       ? gap
			: gap < SAMPLE_NS_LEAST ? SAMPLE_NS_LEAST
			: gap > SAMPLE_NS_MOST  ? SAMPLE_NS_MOST
						: gap;
}

/* Returns `gap`, between a half and one and a half of it: a program's own rhythm must not be met. */
static int64_t jittered(struct keeper *k, int64_t gap)
{
	k->random ^= k->random << 13;
	k->random ^= k->random >> 7;
	k->random ^= k->random << 17;
	return gap / 2 + (int64_t)(k->random % (uint64_t)gap);
}

static void read_terms(struct keeper *k)
{
	k->terms = hami_terms_read(k->region->job, k->region->step);
	const bool divides = k->terms.latency_others && hami_region_processes(k->region) > 1;
	k->part =
		divides ? hami_region_part(k->region, hami_clock_shared() - BUSY_NS) : (struct hami_part){0};
	set_timeslice(k);
}

/*
 * Rests: nothing is outstanding. A launch ends that at once; other work is noticed after REST_NS, and then counts
 * from the last look on.
 */
static void rest(struct keeper *k)
{
	hami_log(2, "nothing to do on the GPU; the keeper rests%s\n", hami_slice_place(k->slice_index));
	hami_ending_works(k->slice_index, false);
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
	k->busy = k->begun = k->counted = k->sampled = hami_clock_steady();
	k->change = k->busy;
	k->seen = (struct hami_seen){0};
	k->job_used = job_used(k);
	read_terms(k);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * Returns the time between two counts at most. What a pause left to count is counted once, soon. A process that is
 * killed takes with it no more than what it was counted before, or what is used between two counts of several.
 */
static int64_t count_gap(const struct keeper *k)
{
	bool uses = k->open || k->counted - k->closed < HAMI_COUNT_NS_SEVERAL;
	bool several = k->pauses && uses && hami_region_processes(k->region) > 1;
	int64_t worked = k->counted - k->begun; /* negative: not counted since */
	return several || worked < HAMI_COUNT_NS_SEVERAL ? HAMI_COUNT_NS_SEVERAL : least(worked, COUNT_NS);
}

/* Returns whether the channels, which shall change, stay as they are until somebody's request is over. */
static bool waits_for_request(struct keeper *k, int64_t steady)
{
	static const struct hami_visit somebody = {.stay = 1, .usual = HAMI_REQUEST_LONGEST};
	k->due = k->due ? k->due : steady;
	if (!hami_terms_waits(&k->terms, !k->open, steady - k->due, &somebody))
		return false;
	count(k, steady);
	uint32_t pid;
	struct hami_visit other = hami_switches_other(k->slice_index, hami_clock_shared(), &pid);
	if (k->open && pid && hami_region_of_pid(k->region, pid) != UINT64_MAX)
		other.stay = 0; /* a process of its own job: nobody latency-critical */
	return hami_terms_waits(&k->terms, !k->open, steady - k->due, &other);
}

static void sample(struct keeper *k, int64_t steady)
{
	const int64_t shared = hami_clock_shared();
	const bool works = hami_meter_sample(k->slice_index, shared);
	k->worked = (3 * k->worked + (works ? 1000 : 0)) / 4;
	if (k->worked >= BUSY_PERMILLE)
		hami_region_note_busy(k->region, shared);
	if (works) {
		if (steady - k->busy > IDLE_FIRST_NS)
			k->begun = steady;
		k->busy = steady;
		hami_region_note_use(k->region);
	}
	k->sampled = steady + jittered(k, k->sample_gap);
}

/* One look: measures and decides. Returns when to look again, steady. */
static int64_t look(struct keeper *k)
{
	int64_t steady = hami_clock_steady(), until, part, in_step;
	if (k->open && steady >= k->sampled)
		sample(k, steady);
	if (steady >= k->change || steady - k->counted >= count_gap(k) || hami_clock_shared() >= k->step) {
		read_terms(k);
		count(k, steady);
	}
	int64_t shared = hami_clock_shared();
	bool turn = hami_terms_turn(&k->terms, hami_slice_yields(&k->slice), shared, &until);
	turn = hami_part_open(&k->terms, &k->part, shared, &part) && turn;
	bool open = hami_terms_open(&k->terms, k->shut, k->said, shared, &in_step);
	until = least(until, least(part, in_step));
	int64_t turn_ends = until == INT64_MAX ? INT64_MAX : steady + (until - shared);
	const bool wanted = !k->pauses || (open && turn);
	if (wanted != k->open && waits_for_request(k, steady))
		return steady + WAIT_LOOK_NS;
	k->due = 0;
	bool done = set_open(k, wanted);
	int64_t step = k->step == INT64_MAX ? INT64_MAX : steady + (k->step - shared);
	int64_t next = least(least(k->change, k->counted + count_gap(k)), least(turn_ends, step));
	next = least(next, k->open ? k->sampled : steady + SHUT_LOOK_NS);
	return done ? next : steady + RETRY_NS;
}

int hami_keep(unsigned int slice, bool pauses)
{
	struct keeper k = {.slice_index = slice,
			   .region = hami_slice_region(slice),
			   .pauses = pauses,
			   .open = true,
			   .duty = 1000,
			   .sample_gap = SAMPLE_NS_MOST,
			   .random = (uint64_t)hami_clock_steady() | 1};
	hami_memory_charge(hami_only(slice),
			   0); /* a place among the job's processes, for one that holds no device memory */
	hami_meter_begin(k.slice_index, hami_clock_shared());
	hami_ending_works(k.slice_index, true);
	k.busy = k.begun = k.counted = k.sampled = k.change = hami_clock_steady();
	read_terms(&k);
	while (k.refusals < REFUSALS_IN_A_ROW) {
		int64_t next = look(&k), now = hami_clock_steady();
		if (k.open && (now - k.busy > IDLE_NS || !hami_objects_started(k.slice_index))) {
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
	return k.error;
}
