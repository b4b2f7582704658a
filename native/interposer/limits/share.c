/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/share.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

#include "arbitration/terms.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/table.h"
#include "base/thread.h"
#include "limits/channels.h"
#include "limits/ending.h"
#include "limits/gate.h"
#include "limits/keeper.h"
#include "limits/latency.h"
#include "limits/launched.h"
#include "region/process.h"

static struct {
	pthread_mutex_t lock;
	bool running[HAMI_SLICES]; /* the slice's thread exists in this process */
} share = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Keeps a cap where nothing can be paused. */
static void gate(unsigned int slice)
{
	hami_ending_gone(slice);
	const struct hami_region *region = hami_slice_region(slice);
	struct hami_terms terms = hami_terms_read(region->job, region->step);
	if (terms.policy != HAMI_POLICY_CAP)
		return;
	hami_gate_open(slice);
	hami_launched_gate(slice);
}

/* The thread of a slice; `running` points into share.running. */
static void *keeper(void *running)
{
	const unsigned int slice = (unsigned int)((bool *)running - share.running);
	pthread_setname_np(pthread_self(), "hami-share");
	prctl(PR_SET_TIMERSLACK, 1000);
	const struct hami_limits *limits = hami_slice_region(slice)->step;
	static const char *const names[] = HAMI_MECHANISM_NAMES;
	uint32_t mechanism = limits->mechanism;
	if (mechanism < sizeof names / sizeof *names)
		hami_log(1, "%u %% of the GPU's time%s, kept by: %s\n", limits->cores_percent,
			 hami_slice_place(slice), names[mechanism]);
	if (mechanism != HAMI_MECHANISM_GATE) {
		int rc = hami_keep(slice, mechanism != HAMI_MECHANISM_SLICE);
		hami_log(0, "the driver refuses to pause channels%s (%s)%s\n", hami_slice_place(slice),
			 strerror(-rc),
			 limits->policy == HAMI_POLICY_CAP ? "; launches are gated instead" : "");
	}
	gate(slice);
	if (mechanism != HAMI_MECHANISM_GATE)
		hami_channels_resume(slice);
	return NULL;
}

void hami_share_begin(unsigned int slice)
{
	if (slice >= hami_slice_count())
		return;
	pthread_mutex_lock(&share.lock);
	bool *running = &share.running[slice];
	if (*running)
		hami_launched_wake(slice);
	hami_latency_watch();
	if (!*running) {
		hami_launched_note_first(slice);
		int rc = hami_thread(keeper, running);
		*running = !rc;
		if (rc) {
			hami_log(0,
				 "no thread to keep the share of the GPU's time%s (%s); "
				 "launches are gated instead\n",
				 hami_slice_place(slice), strerror(rc));
			gate(slice);
		}
	}
	pthread_mutex_unlock(&share.lock);
}

void hami_share_forked(void)
{
	hami_lock_renew(&share.lock);
	for (unsigned int i = 0; i < HAMI_SLICES; i++)
		if (share.running[i])
			share.running[i] = false;
}
