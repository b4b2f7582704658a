/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/terms.h"

#include "arbitration/budget.h"
#include "arbitration/greed.h"
#include "arbitration/slice.h"

/*
 * Microseconds, measured on an H200 (docs/adr/045-the-gpus-own-scheduler.md). A round of 45 ms: a change of tenant costs
 * about 0.2 ms of a full chip, so slices are long. Where somebody's share is so small that it costs too much all the same,
 * all have longer ones (docs/adr/099-longer-rounds-for-small-shares.md).
 */
#define SLICE_PER_PERCENT 450u
#define SLICE_PER_PERCENT_MOST 600u
#define MANY_CAPS 8
#define SLICE_OF_LEAST 6000u /* of the tenant with the least, as far as that goes */
#define SLICE_LEAST 200u
#define CHANGE 230u /* of tenants, or of processes of one */
/* Of the time, beside several latency-critical tenants: changes of tenant, and what averages miss. */
#define CHANGES_PERCENT 3u
/* Longer than any request, so that it is not interrupted by others once it has begun. */
#define SLICE_LATENCY 20000u
/*
 * Of a latency-critical tenant that others come before: what their requests wait for. Shorter ones leave it too little
 * beside best effort, as each of its slices costs two changes (docs/time-study.md, "The order of latency-critical jobs").
 */
#define SLICE_LATENCY_BELOW 1000u
/* For each percent, of a greedy one beside others of its kind. Shorter ones leave it too little beside best effort, too. */
#define SLICE_LATENCY_GREEDY 50u
/* What a request waits for at most. It costs nothing while no request is there. */
#define SLICE_BESIDE_LATENCY 10u
/* Of copies there: a change costs about a microsecond (docs/adr/097-copies-give-way.md). */
#define SLICE_COPY_BESIDE_LATENCY 50u
/* ns. */
#define CHANGE_LATEST 5000000ll /* how late a change may be for a request's sake */
#define LEFT_LATEST 1000000ll   /* when another tenant's pause has taken effect: 0.35 to 1 ms on an H200 */
#define REQUEST_VARIES 300000ll /* by so much one takes longer than usual */
/* Returns the percentage, or the nearest that can be kept, whatever was written. */
static uint32_t share_of(uint32_t job_percent, uint32_t step_percent)
{
	uint32_t least = step_percent < job_percent ? step_percent : job_percent;
	return least < 1 ? 1 : least > 100 ? 100 : least;
}

/* Returns a record's share of the device that programs see: a job has all of its MIG instance, a step maybe a part. */
static uint32_t percent_of(const struct hami_limits *limits)
{
	if (limits->mode != HAMI_MODE_MIG)
		return limits->cores_percent;
	return limits->device_percent ? limits->device_percent : 100;
}

static uint32_t within(uint32_t value, uint32_t least, uint32_t most)
{
	return value < least ? least : value > most ? most : value;
}

/* Returns the others' fewest cores, percent; 0: there are no others. */
static uint32_t others_least(const struct hami_terms *terms)
{
	return terms->others_least_percent < 100 ? terms->others_least_percent : 100;
}

/* Returns the timeslice for each percent, us: the same for all tenants, as all see the same caps and fewest cores. */
static uint32_t slice_per_percent(const struct hami_terms *terms)
{
	uint32_t others = others_least(terms), own = terms->cores_percent ? terms->cores_percent : 1;
	uint32_t least = others < own ? others : own;
	uint64_t caps = (uint64_t)terms->others_capped + (terms->policy == HAMI_POLICY_CAP);
	return others && caps >= MANY_CAPS
		       ? within(SLICE_OF_LEAST / least, SLICE_PER_PERCENT, SLICE_PER_PERCENT_MOST)
		       : SLICE_PER_PERCENT;
}

bool hami_terms_has_long_rounds(const struct hami_terms *terms)
{
	return slice_per_percent(terms) > SLICE_PER_PERCENT;
}

struct hami_terms hami_terms_read(const struct hami_limits *job, const struct hami_limits *step)
{
	const bool of_server = job->mode == HAMI_MODE_MPS;
	/* An MPS server has turns as others have: its clients keep it to nothing else. */
	const bool latency = step->latency && !of_server;
	const bool beyond = latency && __atomic_load_n(&job->latency_beyond, __ATOMIC_RELAXED);
	const uint32_t server_cores = of_server ? __atomic_load_n(&job->server_cores, __ATOMIC_RELAXED) : 0;
	return (struct hami_terms){
		.cores_percent = server_cores ? within(server_cores, 1, 100)
					      : share_of(percent_of(job), percent_of(step)),
		.of_server = of_server,
		.policy = step->policy,
		.slice_us = beyond ? 0 : step->slice_us, /* it is of its class */
		.latency = latency && !beyond,
		.beyond = beyond,
		/* MPS keeps its time, and a MIG instance is nobody else's. */
		.floor_percent = job->mode == HAMI_MODE_SHARE ? step->floor_percent : 0,
		.latency_others = __atomic_load_n(&job->latency_others, __ATOMIC_RELAXED),
		.latency_above = __atomic_load_n(&job->latency_above, __ATOMIC_RELAXED),
		.turn_begin = __atomic_load_n(&job->turn_begin_permille, __ATOMIC_RELAXED),
		.turn_length = __atomic_load_n(&job->turn_length_permille, __ATOMIC_RELAXED),
		.others_capped = __atomic_load_n(&job->others_capped, __ATOMIC_RELAXED),
		.others_least_percent = __atomic_load_n(&job->others_least_cores, __ATOMIC_RELAXED),
		.only_other_percent = __atomic_load_n(&job->only_other_cores, __ATOMIC_RELAXED),
		.in_step = job->in_step != 0,
		.step_begin = __atomic_load_n(&job->step_begin_permille, __ATOMIC_RELAXED),
		.beside_slice_us = __atomic_load_n(&job->beside_slice_us, __ATOMIC_RELAXED),
		.latency_cores = __atomic_load_n(&job->latency_cores, __ATOMIC_RELAXED),
	};
}

/* Returns the part of a time, us, for one of the sharers, permille, of whom each needs `each` more of it. */
static uint32_t part_of(uint32_t us, uint32_t sharers, uint32_t each)
{
	const uint64_t part = ((uint64_t)us + each) * HAMI_PART_FULL / sharers;
	return part > each ? (uint32_t)part - each : 0;
}

uint32_t hami_terms_timeslice_us(const struct hami_terms *terms, uint32_t sharers)
{
	sharers = sharers > HAMI_PART_FULL && !terms->of_server ? sharers : HAMI_PART_FULL;
	if (!terms->latency && terms->latency_others)
		return SLICE_BESIDE_LATENCY;
	if (terms->of_server && !terms->others_least_percent)
		return HAMI_DRIVERS_SLICE_US;
	if (terms->latency && terms->latency_above)
		return within(part_of(SLICE_LATENCY_BELOW, sharers, 0), HAMI_SLICE_US_LEAST,
			      SLICE_LATENCY_BELOW);
	if (terms->latency && terms->latency_others && terms->greedy)
		return within(part_of(terms->cores_percent * SLICE_LATENCY_GREEDY, sharers, 0),
			      HAMI_SLICE_US_LEAST, SLICE_LATENCY);
	if (terms->slice_us && !terms->latency_others && !terms->of_server)
		return within(part_of(terms->slice_us, sharers, 0), HAMI_CLASS_SLICE_US_MIN,
			      HAMI_CLASS_SLICE_US_MAX);
	if (terms->latency)
		return SLICE_LATENCY;
	if (terms->beside_slice_us)
		return within(part_of(terms->beside_slice_us, sharers, 0), SLICE_LEAST,
			      HAMI_CLASS_SLICE_US_MAX);
	if (terms->policy == HAMI_POLICY_NONE && !terms->of_server)
		return sharers > HAMI_PART_FULL && terms->others_least_percent
			       ? within(part_of(HAMI_DRIVERS_SLICE_US, sharers, 0), SLICE_LEAST,
					HAMI_DRIVERS_SLICE_US)
			       : 0;
	const uint32_t change = terms->others_least_percent ? CHANGE : 0;
	const uint32_t slice = part_of(terms->cores_percent * slice_per_percent(terms), sharers, change);
	const bool is_free = terms->policy == HAMI_POLICY_BURST && !terms->others_least_percent;
	const uint32_t shortest = is_free && sharers > HAMI_PART_FULL ? HAMI_DRIVERS_SLICE_US : SLICE_LEAST;
	return slice < shortest ? shortest : slice;
}

uint32_t hami_terms_at_once(const struct hami_terms *terms)
{
	const bool follows = !terms->latency && !terms->latency_others && !terms->of_server &&
			     !terms->in_step && terms->policy != HAMI_POLICY_NONE && !terms->slice_us &&
			     !terms->beside_slice_us;
	if (!follows || !terms->others_least_percent)
		return UINT32_MAX;
	const uint32_t all = terms->cores_percent * slice_per_percent(terms) + CHANGE;
	return within(all / (SLICE_LEAST + CHANGE), 1, UINT32_MAX);
}

uint32_t hami_terms_copy_timeslice_us(const struct hami_terms *terms)
{
	return !terms->latency && terms->latency_others ? SLICE_COPY_BESIDE_LATENCY : 0;
}

uint32_t hami_terms_others_timeslice_us(const struct hami_terms *terms)
{
	if (terms->latency || terms->latency_others)
		return 0;
	if (terms->policy == HAMI_POLICY_NONE && !terms->of_server)
		return 0;
	if (terms->in_step || terms->beside_slice_us)
		return 0;
	return others_least(terms) * slice_per_percent(terms);
}

uint32_t hami_terms_other_percent(const struct hami_terms *terms, uint32_t sharers)
{
	return sharers <= HAMI_PART_FULL || terms->of_server ? within(terms->only_other_percent, 0, 100) : 0;
}

uint32_t hami_terms_latency_share(const struct hami_terms *terms)
{
	uint32_t all = within(terms->latency_cores, 0, 10000), left = within(terms->floor_percent, 0, 99);
	uint32_t cores = terms->cores_percent < 100 ? terms->cores_percent : 100;
	uint32_t most = 100 - within(left + CHANGES_PERCENT, 0, 99);
	if (all * HAMI_OVER_PERCENT <= most * 100)
		return cores;
	uint32_t share = cores * most * 100 / (all * HAMI_OVER_PERCENT);
	return within(share, 1, cores ? cores : 1);
}

uint32_t hami_terms_cap(const struct hami_terms *terms)
{
	/* Whatever its policy: beside its long slices nobody else gets anything while it has work. */
	uint32_t most = terms->latency && terms->floor_percent < 100 ? 100 - terms->floor_percent : 100;
	return terms->policy == HAMI_POLICY_CAP && terms->cores_percent < most ? terms->cores_percent : most;
}

bool hami_terms_turn(const struct hami_terms *terms, bool yields, int64_t longer, int64_t now, int64_t *until)
{
	*until = INT64_MAX;
	if (!yields && (!terms->latency_others || terms->latency))
		return true;
	if (!terms->turn_length || terms->turn_length >= 1000)
		return true;
	const int64_t every = terms->latency ? HAMI_LEFT_EVERY_NS : HAMI_ROUND_NS;
	int64_t begin = every * (terms->turn_begin % 1000) / 1000;
	int64_t length = every * terms->turn_length / 1000 - (terms->latency ? HAMI_LEFT_LATE_NS : 0);
	length = length > 0 ? length : every / 1000;
	const int64_t most = (every - length) / 2;
	length += longer < 0 ? 0 : longer < most ? longer : most;
	int64_t into = (now - begin) % every;
	if (into < 0)
		into += every;
	*until = now - into + (into < length ? length : every);
	return into < length;
}

bool hami_terms_open(const struct hami_terms *terms, bool shut, int64_t since, int64_t now, int64_t *until)
{
	*until = INT64_MAX;
	if (!terms->in_step || now < since)
		return !shut;
	int64_t into = (since - HAMI_ROUND_NS * (terms->step_begin % 1000) / 1000) % HAMI_ROUND_NS;
	int64_t instant = into > 0 ? since - into + HAMI_ROUND_NS : since - into;
	bool is_early = now < instant;
	if (is_early)
		*until = instant;
	return hami_budget_shuts_in_step(hami_terms_cap(terms)) ? !shut || is_early : !shut && !is_early;
}

bool hami_terms_waits(const struct hami_terms *terms, bool opens, int64_t late,
		      const struct hami_visit *other)
{
	if (!terms->latency_others || terms->latency || late >= CHANGE_LATEST || other->stay <= 0)
		return false;
	return opens ? late < LEFT_LATEST || other->stay - REQUEST_VARIES < other->usual
		     : other->stay < HAMI_REQUEST_LONGEST;
}
