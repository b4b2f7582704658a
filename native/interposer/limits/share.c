/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/share.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "driver/rm_objects.h"
#include "limits/activity.h"
#include "limits/channels.h"
#include "limits/duty.h"
#include "limits/gate.h"
#include "region/glance.h"
#include "region/process.h"

#define IDLE_AFTER_NS (2 * HAMI_NS_PER_S) /* no launch for so long: ask NVML whether the GPU is idle too */
/* A timeslice of 40 ms x share: 10 ms for each of four equals. A switch costs about 0.2 ms on a full H200. */
#define SLICE_US_PER_PERCENT 400u
#define SLICE_US_LEAST 200u
#define REFUSALS_IN_A_ROW 3

_Atomic int hami_launch_flag;

static struct {
	pthread_mutex_t lock;
	bool running;            /* the thread exists in this process */
	_Atomic uint32_t parked; /* futex: 1 while the keeper sleeps because nothing runs */
} share = {.lock = PTHREAD_MUTEX_INITIALIZER};

void hami_launch_slow(void *stream, bool per_thread)
{
	if (atomic_fetch_and(&hami_launch_flag, ~HAMI_LAUNCH_WATCHED) & HAMI_LAUNCH_GATED)
		hami_gate_pass(stream, per_thread);
	if (atomic_exchange(&share.parked, 0))
		syscall(SYS_futex, &share.parked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/*
 * Rests the duty cycle: nothing was launched for a while, and NVML shows that nothing runs. The channels stay
 * enabled, and the thread sleeps until a launch wakes it. Once a second it looks for work submitted without a
 * launch (a memset, a graph on the device).
 */
static void park(void)
{
	hami_log(1, "the GPU is idle; the duty cycle rests\n");
	hami_channels_pause(false);
	atomic_store(&share.parked, 1);
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_WATCHED);
	while (atomic_load(&share.parked)) {
		struct timespec second = {.tv_sec = 1};
		syscall(SYS_futex, &share.parked, FUTEX_WAIT_PRIVATE, 1, &second, NULL, 0);
		if (atomic_load(&share.parked) && hami_gpu_used_lately())
			atomic_store(&share.parked, 0);
	}
}

/*
 * Runs one window. The GPU stops and starts at the same delay after each of the two calls begins, so that the
 * time between their beginnings is the GPU's (measured; docs/benchmarks/interposer.md).
 */
static int one_window(struct hami_duty *duty)
{
	int64_t start = hami_duty_next(duty, hami_clock_shared()), length = hami_duty_window(duty);
	hami_clock_sleep_until(start);
	if (length == 0) {
		hami_duty_done(duty, 0);
		return 0;
	}
	int64_t from = hami_clock_shared();
	int rc = hami_channels_pause(false);
	hami_clock_sleep_until(start + length);
	int64_t to = hami_clock_shared();
	if (!rc)
		rc = hami_channels_pause(true);
	hami_duty_done(duty, to - from);
	hami_region_add_time(hami_region(), (uint64_t)(to - from), (uint64_t)(duty->period - (to - from)));
	return rc;
}

/* Runs the duty cycle until the driver refuses to pause; returns its error. */
static int keep_cap(const struct hami_limits *limits)
{
	struct hami_duty duty = {0};
	int refusals = 0, rc = 0;
	int64_t last_launch = hami_clock_shared(), last_look = 0;
	while (refusals < REFUSALS_IN_A_ROW) {
		struct hami_duty plan =
			hami_duty_plan(limits->cores_percent, hami_region_phase(hami_region()));
		plan.owed = plan.period == duty.period ? duty.owed : 0;
		duty = plan;
		bool launched =
			!(atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_WATCHED) & HAMI_LAUNCH_WATCHED);
		int64_t now = hami_clock_shared();
		if (launched)
			last_launch = now;
		bool idle = !hami_objects_started();
		if (now - last_launch > IDLE_AFTER_NS && now - last_look > HAMI_NS_PER_S) {
			idle = idle || !hami_gpu_used_lately();
			last_look = now;
		}
		if (idle) {
			park();
			last_launch = hami_clock_shared();
			continue;
		}
		rc = one_window(&duty);
		refusals = rc ? refusals + 1 : 0;
	}
	hami_channels_pause(false);
	return rc;
}

/* Sets timeslices until the driver refuses them. */
static void keep_share(const struct hami_limits *limits)
{
	uint64_t current = 0;
	unsigned int known = 0;
	for (;;) {
		unsigned int groups = hami_objects_started_ever();
		uint32_t processes = hami_region_processes(hami_region());
		uint64_t slice = limits->cores_percent * SLICE_US_PER_PERCENT / (processes ? processes : 1);
		if (slice < SLICE_US_LEAST)
			slice = SLICE_US_LEAST;
		int rc = slice != current || groups != known ? hami_channels_timeslice(slice) : 0;
		if (rc) {
			hami_log(0, "the driver refuses timeslices (%s); the GPU's own turns stay\n",
				 strerror(-rc));
			return;
		}
		current = slice;
		known = groups;
		hami_clock_sleep_until(hami_clock_shared() + HAMI_NS_PER_S / 5);
	}
}

static uint32_t choose(const struct hami_limits *limits)
{
	if (limits->mechanism != HAMI_MECHANISM_AUTO)
		return limits->mechanism;
	return limits->policy == HAMI_POLICY_CAP && limits->cores_percent < 100 ? HAMI_MECHANISM_DUTY
										: HAMI_MECHANISM_SLICE;
}

static void *keeper(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "hami-share");
	const struct hami_limits *limits = hami_region()->step;
	static const char *const names[] = HAMI_MECHANISM_NAMES;
	uint32_t mechanism = choose(limits);
	if (mechanism < sizeof names / sizeof *names)
		hami_log(1, "%u %% of the GPU's time, kept by: %s\n", limits->cores_percent,
			 names[mechanism]);
	if (mechanism == HAMI_MECHANISM_SLICE) {
		keep_share(limits);
		return NULL;
	}
	if (mechanism == HAMI_MECHANISM_DUTY)
		hami_log(0, "the driver refuses to pause channels (%s); launches are gated instead\n",
			 strerror(-keep_cap(limits)));
	hami_gate_open(limits->cores_percent);
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_GATED);
	return NULL;
}

void hami_share_begin(void)
{
	struct hami_region *region = hami_region();
	if (!region)
		return;
	pthread_mutex_lock(&share.lock);
	if (!share.running) {
		static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
		sigset_t all, before; /* the application's signals are not for this thread */
		pthread_t thread;
		pthread_attr_t attributes;
		sigfillset(&all);
		for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
			sigdelset(&all, faults[i]); /* blocked, they end the process without its handler */
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attributes, 1 << 20); /* NVML is called on it */
		pthread_sigmask(SIG_SETMASK, &all, &before);
		int rc = pthread_create(&thread, &attributes, keeper, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		pthread_attr_destroy(&attributes);
		share.running = !rc;
		if (rc)
			hami_log(0, "no thread to keep the share of the GPU's time (%s)\n", strerror(rc));
	}
	pthread_mutex_unlock(&share.lock);
}

void hami_share_forked(void)
{
	hami_lock_renew(&share.lock);
	if (!share.running && !atomic_load(&share.parked) && !atomic_load(&hami_launch_flag))
		return;
	share.running = false;
	atomic_store(&share.parked, 0);
	atomic_store(&hami_launch_flag, 0);
}
