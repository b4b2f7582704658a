/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/meter.h"

#include <errno.h>
#include <stdlib.h>

#include "arbitration/budget.h"
#include "arbitration/use.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "limits/activity.h"
#include "limits/launched.h"
#include "limits/probe.h"

#define SAMPLES HAMI_USE_SAMPLES
#define SWITCHES 4096
#define PAUSE_NS 5000000ll
#define CONTENDED_NS (2 * HAMI_ROUND_NS)
#define LOOK_AGAIN_NS HAMI_NS_PER_S /* for the driver's records, when they could not be had */
#define LAUNCH_LASTS_NS (2 * HAMI_NS_PER_S)

static struct {
	struct hami_use use;
	struct hami_sample samples[SAMPLES];
	size_t sample_count;
	struct hami_switch own[SAMPLES]; /* without the driver's: when the channels were opened and paused */
	size_t own_count;
	bool told;         /* the driver tells the switches */
	int error;         /* why it does not; said once */
	int64_t asked;     /* steady: when it was last asked to */
	int64_t looked;    /* steady: when NVML was last asked */
	bool used_lately;  /* its answer */
	int64_t launched;  /* steady: when a launch was last noticed */
	int64_t paused;    /* since when the channels are; 0: they are open */
	int64_t resumed;   /* when they were last opened */
	int64_t contended; /* when others last took the engine from it */
} meter;

static struct hami_switch switches[SWITCHES];

/* Takes the process as on the engine, unless its channels are paused. */
static void begin(int64_t now)
{
	hami_use_begin(&meter.use, now);
	meter.use.on = !meter.paused;
}

/* Asks the driver to tell the switches, by the first of this process's channels. */
static void listen(int64_t now)
{
	long count;
	int64_t steady = hami_clock_steady();
	if (meter.told || (meter.asked && steady - meter.asked < LOOK_AGAIN_NS))
		return;
	meter.asked = steady;
	struct hami_target *targets = hami_objects_channels(&count);
	if (count > 0) {
		int rc = hami_switches_open(&targets[0]);
		meter.told = rc == 0;
		if (rc && rc != meter.error)
			hami_log(
				1,
				"the driver does not tell when this process was at work (error %d); beside others "
				"all of its open time counts\n",
				-rc);
		meter.error = rc;
		if (!rc)
			begin(now);
	}
	free(targets);
}

void hami_meter_begin(int64_t now)
{
	listen(now);
	static const struct hami_lengths none = {0};
	struct hami_stays ignored = {0};
	if (meter.told)
		hami_switches_read(switches, SWITCHES, &none, &ignored);
	begin(now);
	meter.sample_count = meter.own_count = 0;
}

/*
 * Where libcuda cannot tell: work is taken as outstanding for two seconds after a launch, and as long as NVML
 * sees some.
 */
static bool guess(void)
{
	int64_t steady = hami_clock_steady();
	if (hami_launched())
		meter.launched = steady;
	if (meter.launched && steady - meter.launched < LAUNCH_LASTS_NS)
		return true;
	if (!meter.looked || steady - meter.looked > LOOK_AGAIN_NS) {
		meter.looked = steady;
		meter.used_lately = hami_gpu_used_lately();
	}
	return meter.used_lately;
}

bool hami_meter_sample(int64_t now)
{
	enum hami_outstanding answer = hami_probe(hami_objects_started());
	bool outstanding =
		answer == HAMI_OUTSTANDING_UNKNOWN ? guess() : answer == HAMI_SOMETHING_OUTSTANDING;
	if (meter.sample_count < SAMPLES)
		meter.samples[meter.sample_count++] =
			(struct hami_sample){.at = now, .outstanding = outstanding};
	return outstanding;
}

void hami_meter_opened(bool open, int64_t now)
{
	meter.paused = open ? 0 : now;
	meter.resumed = open ? now : meter.resumed;
	if (!meter.told && meter.own_count < SAMPLES)
		meter.own[meter.own_count++] = (struct hami_switch){.at = now, .on = open};
}

/*
 * A pause takes the process off the engine, and the driver tells so within PAUSE_NS. Where it does not, that is
 * said here, lest time be counted that nobody can use.
 */
static long end_paused(long count, int64_t now)
{
	if (meter.paused > now)
		meter.paused = now - PAUSE_NS - 1; /* the clock was set back */
	bool on = count ? switches[count - 1].on : meter.use.on;
	if (on && meter.paused && now - meter.paused > PAUSE_NS && count < SWITCHES)
		switches[count++] = (struct hami_switch){.at = meter.paused + PAUSE_NS, .on = false};
	return count;
}

/* Notes when the engine was last taken from this process by others: a stay that ended with the channels open. */
static void note_contention(long count)
{
	for (long i = 0; i < count; i++)
		if (!switches[i].on && (!meter.paused || switches[i].at < meter.paused) &&
		    switches[i].at - meter.resumed > PAUSE_NS)
			meter.contended = switches[i].at;
}

bool hami_meter_contended(int64_t now)
{
	return meter.told && now - meter.contended < CONTENDED_NS;
}

void hami_meter_count(int64_t now, const struct hami_lengths *lengths, struct hami_seen *seen)
{
	listen(now);
	seen->stays = (struct hami_stays){0};
	seen->samples = (uint32_t)meter.sample_count;
	seen->outstanding = 0;
	for (size_t i = 0; i < meter.sample_count; i++)
		seen->outstanding += meter.samples[i].outstanding;
	long count = meter.told ? hami_switches_read(switches, SWITCHES, lengths, &seen->stays) : 0;
	if (count >= 0 && meter.told) {
		note_contention(count);
		count = end_paused(count, now);
	}
	if (count <
	    0) { /* the client has gone, or records were lost: all of the time counts, and begins anew */
		meter.told = count == -ENODATA;
		seen->used = hami_use_count(&meter.use, NULL, 0, meter.samples, meter.sample_count, now);
		begin(now);
	} else {
		const struct hami_switch *list = meter.told ? switches : meter.own;
		size_t length = meter.told ? (size_t)count : meter.own_count;
		meter.use.saves = meter.told;
		seen->used = hami_use_count(&meter.use, list, length, meter.samples, meter.sample_count, now);
	}
	meter.sample_count = meter.own_count = 0;
}

void hami_meter_forked(void)
{
	if (!meter.told && !meter.asked)
		return;
	meter.told = false;
	meter.asked = meter.paused = 0;
	meter.sample_count = meter.own_count = 0;
}
