/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/meter.h"

#include <errno.h>
#include <stdlib.h>

#include "arbitration/budget.h"
#include "arbitration/parts.h"
#include "arbitration/use.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "limits/activity.h"
#include "limits/launched.h"
#include "limits/probe.h"
#include "region/glance.h"
#include "region/process.h"

#define SAMPLES HAMI_USE_SAMPLES
#define SWITCHES 4096
#define PAUSE_NS 5000000ll
#define CONTENDED_NS (2 * HAMI_ROUND_NS)
#define LOOK_AGAIN_NS HAMI_NS_PER_S /* for the driver's records, when they could not be had */
#define LAUNCH_LASTS_NS (2 * HAMI_NS_PER_S)

static struct meter {
	struct hami_use use;
	struct hami_sample samples[SAMPLES];
	size_t sample_count;
	struct hami_switch own[SAMPLES]; /* without the driver's: when the channels were opened and paused */
	size_t own_count;
	bool told;                   /* the driver tells the switches */
	int error;                   /* why it does not; said once */
	int64_t asked;               /* steady: when it was last asked to */
	int64_t looked;              /* steady: when NVML was last asked */
	bool used_lately;            /* its answer */
	int64_t launched;            /* steady: when a launch was last noticed */
	int64_t paused;              /* since when the channels are; 0: they are open */
	int64_t resumed;             /* when they were last opened */
	int64_t pause;               /* for so long they were, until then, and it is not counted */
	int64_t interrupted, waited; /* when others last took the engine from it, and it theirs */
	int64_t came;                /* to the engine; 0: it is not there, or it is not known since when */
	uint32_t unfilled;           /* HAMI_PART_FULL less hami_part_filled(), which begins as all */
	struct hami_switch switches[SWITCHES]; /* of the last read */
} meters[HAMI_SLICES];

static unsigned int slice_of(const struct meter *m)
{
	return (unsigned int)(m - meters);
}

/* Takes the process as on the engine, unless its channels are paused. */
static void begin(struct meter *m, int64_t now)
{
	hami_use_begin(&m->use, now);
	m->use.on = !m->paused;
	m->came = 0;
}

/* Asks the driver to tell the switches, by the first of this process's channels. */
static void listen(struct meter *m, int64_t now)
{
	long count;
	int64_t steady = hami_clock_steady();
	if (m->told || (m->asked && steady - m->asked < LOOK_AGAIN_NS))
		return;
	m->asked = steady;
	struct hami_target *targets = hami_objects_channels(slice_of(m), &count);
	if (count > 0) {
		int rc = hami_switches_open(slice_of(m), &targets[0]);
		m->told = rc == 0;
		if (rc && rc != m->error)
			hami_log(
				1,
				"the driver does not tell when this process was at work%s (error %d); beside "
				"others all of its open time counts\n",
				hami_slice_place(slice_of(m)), -rc);
		m->error = rc;
		if (!rc)
			begin(m, now);
	}
	free(targets);
}

void hami_meter_begin(unsigned int slice, int64_t now)
{
	struct meter *m = &meters[slice];
	listen(m, now);
	static const struct hami_lengths none = {0};
	struct hami_stays ignored = {0};
	if (m->told)
		hami_switches_read(slice_of(m), m->switches, SWITCHES, &none, &ignored);
	begin(m, now);
	m->sample_count = m->own_count = 0;
}

/*
 * Where libcuda cannot tell: work is taken as outstanding for two seconds after a launch, and as long as NVML
 * sees some.
 */
static bool guess(struct meter *m)
{
	int64_t steady = hami_clock_steady();
	if (hami_launched(slice_of(m)))
		m->launched = steady;
	if (m->launched && steady - m->launched < LAUNCH_LASTS_NS)
		return true;
	if (!m->looked || steady - m->looked > LOOK_AGAIN_NS) {
		m->looked = steady;
		m->used_lately = hami_gpu_used_lately(slice_of(m));
	}
	return m->used_lately;
}

bool hami_meter_sample(unsigned int slice, int64_t now)
{
	struct meter *m = &meters[slice];
	enum hami_outstanding answer = hami_probe(slice, hami_objects_started(slice));
	bool outstanding =
		answer == HAMI_OUTSTANDING_UNKNOWN ? guess(m) : answer == HAMI_SOMETHING_OUTSTANDING;
	if (m->sample_count < SAMPLES)
		m->samples[m->sample_count++] = (struct hami_sample){.at = now, .outstanding = outstanding};
	return outstanding;
}

void hami_meter_opened(unsigned int slice, bool open, int64_t now)
{
	struct meter *m = &meters[slice];
	if (open && m->paused && now > m->paused)
		m->pause = now - m->paused;
	m->paused = open ? 0 : now;
	m->resumed = open ? now : m->resumed;
	if (!m->told && m->own_count < SAMPLES)
		m->own[m->own_count++] = (struct hami_switch){.at = now, .on = open};
}

/*
 * A pause takes the process off the engine, and the driver tells so within PAUSE_NS. Where it does not, that is
 * said here, lest time be counted that nobody can use.
 */
static long end_paused(struct meter *m, long count, int64_t now)
{
	if (m->paused > now)
		m->paused = now - PAUSE_NS - 1; /* the clock was set back */
	bool on = count ? m->switches[count - 1].on : m->use.on;
	if (on && m->paused && now - m->paused > PAUSE_NS && count < SWITCHES)
		m->switches[count++] = (struct hami_switch){.at = m->paused + PAUSE_NS, .on = false};
	return count;
}

/*
 * Notes when the engine was last taken from this process by others, a stay that ended with the channels open; and when it
 * last came to the engine after others, having waited for them.
 */
static void note_contention(struct meter *m, long count)
{
	for (long i = 0; i < count; i++) {
		const struct hami_switch *s = &m->switches[i];
		if ((m->paused && s->at >= m->paused) || s->at - m->resumed <= PAUSE_NS)
			continue;
		if (!s->on)
			m->interrupted = s->at;
		else if (s->after_others)
			m->waited = s->at;
	}
}

/*
 * Learns from its stays how much of its timeslices it uses, `slice` ns, or the driver's; not from one that its own pause
 * ended.
 */
static void note_stays(struct meter *m, long count, int64_t slice)
{
	slice = slice ? slice : 1000ll * HAMI_DRIVERS_SLICE_US;
	for (long i = 0; i < count; i++) {
		const struct hami_switch *s = &m->switches[i];
		const bool is_cut = m->paused && s->at >= m->paused;
		if (!s->on && m->came && !is_cut)
			m->unfilled = HAMI_PART_FULL -
				      hami_part_filled(HAMI_PART_FULL - m->unfilled, s->at - m->came, slice);
		m->came = s->on ? s->at : 0;
	}
}

/* Counts how often it came to the engine after somebody who is no process of its own job, and for how long it was paused. */
static void count_arrivals(struct meter *m, long count, struct hami_presence *presence)
{
	struct hami_region *region = hami_slice_region(slice_of(m));
	const bool alone = hami_region_processes(region) <= 1;
	uint32_t pid = 0; /* of the last one that was looked up */
	bool sibling = false;
	for (long i = 0; i < count; i++) {
		const struct hami_switch *s = &m->switches[i];
		if (!s->after_others)
			continue;
		if (!alone && s->pid != pid) {
			pid = s->pid;
			sibling = pid && hami_region_of_pid(region, pid) != UINT64_MAX;
		}
		presence->arrivals += !sibling;
	}
	presence->paused = presence->arrivals && !m->paused ? m->pause : 0;
	m->pause -= presence->paused;
}

bool hami_meter_contended(unsigned int slice, int64_t now, bool by_waiting)
{
	const struct meter *m = &meters[slice];
	return m->told &&
	       (now - m->interrupted < CONTENDED_NS || (by_waiting && now - m->waited < CONTENDED_NS));
}

void hami_meter_count(unsigned int slice, int64_t now, const struct hami_lengths *lengths,
		      struct hami_seen *seen, struct hami_presence *presence)
{
	struct meter *m = &meters[slice];
	listen(m, now);
	seen->stays = (struct hami_stays){0};
	seen->samples = (uint32_t)m->sample_count;
	seen->outstanding = 0;
	for (size_t i = 0; i < m->sample_count; i++)
		seen->outstanding += m->samples[i].outstanding;
	long count =
		m->told ? hami_switches_read(slice_of(m), m->switches, SWITCHES, lengths, &seen->stays) : 0;
	if (count >= 0 && m->told) {
		note_contention(m, count);
		note_stays(m, count, lengths->own_slice);
		count_arrivals(m, count, presence);
		count = end_paused(m, count, now);
	}
	if (count <
	    0) { /* the client has gone, or records were lost: all of the time counts, and begins anew */
		m->told = count == -ENODATA;
		seen->used = hami_use_count(&m->use, NULL, 0, m->samples, m->sample_count, now);
		begin(m, now);
	} else {
		const struct hami_switch *list = m->told ? m->switches : m->own;
		size_t length = m->told ? (size_t)count : m->own_count;
		m->use.saves = m->told;
		seen->used = hami_use_count(&m->use, list, length, m->samples, m->sample_count, now);
	}
	seen->begun =
		m->use.came ? (struct hami_span){now - m->use.came, m->use.used} : (struct hami_span){0};
	presence->on = m->use.there;
	presence->used = seen->used;
	presence->others = seen->stays.got;
	m->sample_count = m->own_count = 0;
}

uint32_t hami_meter_filled(unsigned int slice)
{
	return HAMI_PART_FULL - meters[slice].unfilled;
}

void hami_meter_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		struct meter *m = &meters[i];
		if (!m->told && !m->asked)
			continue;
		m->told = false;
		m->asked = m->paused = m->came = 0;
		m->unfilled = 0;
		m->sample_count = m->own_count = 0;
	}
}
