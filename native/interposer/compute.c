/* SPDX-License-Identifier: Apache-2.0 */
#include "compute.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interposer.h"
#include "rm.h"

#define NS_PER_S 1000000000ll
/* A timeslice of 40 ms x share: 10 ms for each of four equals. A switch costs about 0.2 ms on a full H200. */
#define SLICE_US_PER_PERCENT 400u
#define SLICE_US_LEAST 200u

static struct {
	pthread_mutex_t lock;
	bool running; /* the thread exists in this process */
	bool refused; /* the driver refused; said once */
} compute = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t); /* the one clock that all tenants share, in any namespace */
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void sleep_until(int64_t at)
{
	struct timespec t = {.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
	while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void refused(const char *what, int rc)
{
	if (!compute.refused)
		hami_log(0,
			 "this driver does not let the share of the GPU's time be kept (%s: %s); tell the "
			 "administrator: hami-hpc doctor\n",
			 what, strerror(-rc));
	compute.refused = true;
}

#ifdef HAMI_TUNING
static double tune(const char *name, double fallback)
{
	const char *t = getenv(name);
	return t ? atof(t) : fallback;
}
#endif

/*
 * One window: resume, run, pause. The GPU follows a call at some point while it is made; `effect` says where,
 * in 1/1000 of the call, as measured on an H200 (docs/benchmarks/interposer.md).
 */
static int one_window(struct hami_duty *duty)
{
	int64_t start = hami_duty_next(duty, now_ns() + duty->resume_lead), length = hami_duty_window(duty);
	if (!length) {
		sleep_until(start);
		hami_duty_done(duty, 0);
		return 0;
	}
	sleep_until(start - duty->resume_lead);
	int64_t resume_from = now_ns();
	int rc = hami_rm_pause(false);
	int64_t resume_to = now_ns();
	sleep_until(start + length - duty->pause_lead);
	int64_t pause_from = now_ns();
	if (!rc)
		rc = hami_rm_pause(true);
	int64_t pause_to = now_ns();
	double pe = 0.5, re = 0.5;
#ifdef HAMI_TUNING
	pe = tune("TUNE_PE", pe), re = tune("TUNE_RE", re);
	static double sr, sp;
	static int n;
	sr += (double)(resume_to - resume_from), sp += (double)(pause_to - pause_from);
	if (++n % 200 == 0)
		hami_log(1, "windows %d mean resume %.0f us pause %.0f us owed %lld us\n", n, sr / n / 1000,
			 sp / n / 1000, (long long)duty->owed / 1000);
#endif
	int64_t pause_effect = (int64_t)((double)(pause_to - pause_from) * pe);
	int64_t resume_effect = (int64_t)((double)(resume_to - resume_from) * re);
	hami_duty_done(duty, pause_from + pause_effect - (resume_from + resume_effect));
	duty->pause_lead = (7 * duty->pause_lead + pause_effect) / 8;
	duty->resume_lead = (7 * duty->resume_lead + resume_effect) / 8;
	return rc;
}

static void keep_cap(const struct hami_limits *limits)
{
	struct hami_duty duty = hami_duty_plan(limits->cores_percent, limits->phase_percent);
	int failures = 0;
	while (failures < 3) {
		if (!hami_rm_groups()) {
			usleep(1000);
			continue;
		}
		int rc = one_window(&duty);
		failures = rc ? failures + 1 : 0;
		if (failures == 3)
			refused("pausing channels", rc);
	}
	hami_rm_pause(false);
}

static void keep_share(const struct hami_limits *limits)
{
	uint64_t current = 0;
	for (;;) {
		uint32_t processes = hami_region()->usage->head.processes;
		uint64_t slice = limits->cores_percent * SLICE_US_PER_PERCENT / (processes ? processes : 1);
		if (slice < SLICE_US_LEAST)
			slice = SLICE_US_LEAST;
		if (slice != current) {
			int rc = hami_rm_timeslice(slice);
			if (rc)
				refused("setting the timeslice", rc);
			current = slice;
		}
		usleep(200000);
	}
}

static void *keeper(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "hami-share");
	const struct hami_limits *limits = hami_region()->step;
	if (limits->policy == HAMI_POLICY_CAP && limits->cores_percent < 100)
		keep_cap(limits);
	else
		keep_share(limits);
	return NULL;
}

void hami_compute_begin(void)
{
	struct hami_region *region = hami_region();
	if (!region)
		return;
	pthread_mutex_lock(&compute.lock);
	if (!compute.running) {
		sigset_t all, before; /* the application's signals are not for this thread */
		pthread_t thread;
		pthread_attr_t attributes;
		sigfillset(&all);
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attributes, 128 * 1024);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		int rc = pthread_create(&thread, &attributes, keeper, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		pthread_attr_destroy(&attributes);
		compute.running = !rc;
		if (rc)
			hami_log(0, "no thread to keep the share of the GPU's time (%s)\n", strerror(rc));
	}
	pthread_mutex_unlock(&compute.lock);
}

void hami_compute_forked(void)
{
	pthread_mutex_init(&compute.lock, NULL);
	compute.running = false;
	hami_rm_forked();
}
