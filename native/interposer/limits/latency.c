/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/latency.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/rm_objects.h"
#include "limits/announce.h"
#include "limits/launched.h"
#include "limits/outstanding.h"
#include "limits/placeholder.h"
#include "region/latency.h"
#include "region/process.h"

#define LOOK_NS_LEAST 50000ll
#define LOOK_NS_MOST 5000000ll
#define UNKNOWN_NS_MOST HAMI_NS_PER_S /* between two looks where the driver cannot tell */

_Atomic int64_t hami_latency_begun; /* steady; 0: no request is under way */

static struct {
	bool running;           /* the thread exists in this process */
	_Atomic bool ended;     /* nothing is measured any more */
	_Atomic uint32_t awake; /* futex: 0 while the thread sleeps until a request begins */
	_Atomic bool spoilt;    /* by a look of this request the driver could not tell */
	_Atomic int64_t last;   /* when the last request began */
	_Atomic int64_t waited; /* how long the last request took, if the application waited for it; else 0 */
} latency;

/* Asks of all GPUs: nothing is outstanding when nothing is on any. */
static enum hami_outstanding ask(enum hami_outstanding (*one)(unsigned int slice, int groups))
{
	enum hami_outstanding answer = HAMI_NOTHING_OUTSTANDING;
	for (unsigned int i = 0; i < hami_slice_count(); i++) {
		enum hami_outstanding its = one(i, hami_objects_started(i));
		if (its == HAMI_SOMETHING_OUTSTANDING)
			return its;
		if (its == HAMI_OUTSTANDING_UNKNOWN)
			answer = its;
	}
	return answer;
}

struct hami_region *hami_latency_region(void)
{
	for (unsigned int i = 1; i < hami_slice_count() && !hami_objects_started_ever(0); i++)
		if (hami_objects_started_ever(i))
			return hami_slice_region(i);
	return hami_region();
}

static enum hami_outstanding noted(enum hami_outstanding answer)
{
	if (answer == HAMI_OUTSTANDING_UNKNOWN)
		atomic_store(&latency.spoilt, true);
	return answer;
}

/* Ends the request that began at `begun`, unless another thread did. */
static void finish(int64_t begun, int64_t now)
{
	if (!atomic_compare_exchange_strong(&hami_latency_begun, &begun, 0) || atomic_load(&latency.ended))
		return;
	if (!atomic_load(&latency.spoilt))
		hami_region_add_request(hami_latency_region(), (uint64_t)(now - begun), 0);
	hami_launched_time(true);
}

static void begin(int64_t begun)
{
	atomic_store(&latency.spoilt, false);
	atomic_store(&hami_latency_begun, begun);
	atomic_store(&latency.last, begun);
	if (!atomic_exchange(&latency.awake, 1))
		syscall(SYS_futex, &latency.awake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void hami_latency_launched(int64_t begun, bool succeeded)
{
	if (atomic_load(&latency.ended))
		return;
	if (succeeded)
		begin(begun);
	else
		hami_launched_time(true);
}

void hami_latency_waited(void)
{
	int64_t begun = atomic_load(&hami_latency_begun), now = hami_clock_steady();
	if (!begun)
		return;
	enum hami_outstanding answer = noted(ask(hami_outstanding_glance));
	if (answer == HAMI_NOTHING_OUTSTANDING) {
		atomic_store(&latency.waited, now - begun);
		finish(begun, now);
	}
}

static void sleep_ns(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / HAMI_NS_PER_S, .tv_nsec = ns % HAMI_NS_PER_S};
	nanosleep(&t, NULL);
}

static int64_t within(int64_t ns)
{
	return ns < LOOK_NS_LEAST ? LOOK_NS_LEAST : ns > LOOK_NS_MOST ? LOOK_NS_MOST : ns;
}

/* Notices what was launched after the look of `now` and before launches were watched again. */
static void catch_up(int64_t now)
{
	int64_t none = 0;
	atomic_store(&latency.spoilt, false);
	if (ask(hami_outstanding_look) == HAMI_SOMETHING_OUTSTANDING &&
	    atomic_compare_exchange_strong(&hami_latency_begun, &none, now))
		hami_launched_time(false);
}

/* Looks until the request is over. Its first look is late where the application looks itself. */
static void follow(int64_t begun)
{
	int64_t gap = within(atomic_exchange(&latency.waited, 0)), unknown = 0;
	for (;;) {
		sleep_ns(gap);
		if (atomic_load(&hami_latency_begun) != begun)
			return;
		int64_t now = hami_clock_steady();
		enum hami_outstanding answer = noted(ask(hami_outstanding_look));
		if (answer == HAMI_NOTHING_OUTSTANDING) {
			finish(begun, now);
			catch_up(now);
			return;
		}
		gap = within((now - begun) / 8);
		if (answer == HAMI_OUTSTANDING_UNKNOWN) {
			unknown = unknown ? 2 * unknown : LOOK_NS_LEAST;
			gap = unknown = unknown < UNKNOWN_NS_MOST ? unknown : UNKNOWN_NS_MOST;
		}
	}
}

/* Sleeps until a request begins; announces it before, where it is expected. */
static void rest(void)
{
	atomic_store(&latency.awake, 0);
	while (!atomic_load(&hami_latency_begun) && !atomic_load(&latency.ended)) {
		hami_announce_note(atomic_load(&latency.last));
		int64_t wait;
		if (hami_announce(hami_clock_steady(), &wait) && atomic_load(&hami_latency_begun))
			hami_placeholder_end(); /* it came meanwhile */
		struct timespec t = {.tv_sec = wait / HAMI_NS_PER_S, .tv_nsec = wait % HAMI_NS_PER_S};
		syscall(SYS_futex, &latency.awake, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
	}
	atomic_store(&latency.awake, 1);
}

static void *measure(void *unused)
{
	pthread_setname_np(pthread_self(), "hami-latency");
	prctl(PR_SET_TIMERSLACK, 1000);
	while (!atomic_load(&latency.ended)) {
		int64_t begun = atomic_load(&hami_latency_begun);
		hami_announce_note(atomic_load(&latency.last));
		if (begun)
			follow(begun);
		else
			rest();
	}
	return unused;
}

void hami_latency_watch(void)
{
	if (latency.running || !hami_region()->step->latency || atomic_load(&latency.ended))
		return;
	hami_announce_begin();
	int rc = hami_thread(measure, NULL);
	latency.running = !rc;
	if (rc)
		hami_log(0, "no thread to measure how long requests take (error %d)\n", rc);
	else
		hami_launched_time(true); /* here: a request that begins before the thread runs counts too */
}

void hami_latency_end(void)
{
	if (atomic_exchange(&latency.ended, true))
		return;
	hami_launched_time(false);
	begin(0); /* the thread ends */
}

void hami_latency_forked(void)
{
	if (!latency.running && !atomic_load(&latency.ended))
		return;
	latency.running = false;
	atomic_store(&latency.ended, false);
	atomic_store(&latency.awake, 0);
	atomic_store(&latency.waited, 0);
	atomic_store(&hami_latency_begun, 0);
}
