/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/probe.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/table.h"
#include "base/thread.h"

#define PATIENCE_NS 5000000ll

static struct probe {
	bool running;           /* the thread exists in this process */
	_Atomic uint32_t asked; /* futex: 1 from the question to the answer */
	_Atomic int groups;
	_Atomic int answer;
} probes[HAMI_SLICES];

static void wait_while(struct probe *probe, uint32_t value, const struct timespec *most)
{
	syscall(SYS_futex, &probe->asked, FUTEX_WAIT_PRIVATE, value, most, NULL, 0);
}

static void set_asked(struct probe *probe, uint32_t value)
{
	atomic_store(&probe->asked, value);
	syscall(SYS_futex, &probe->asked, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *answer(void *of_slice)
{
	struct probe *probe = of_slice;
	const unsigned int slice = (unsigned int)(probe - probes);
	pthread_setname_np(pthread_self(), "hami-probe");
	for (;;) {
		while (!atomic_load(&probe->asked))
			wait_while(probe, 0, NULL);
		atomic_store(&probe->answer,
			     (int)hami_outstanding_sample(slice, atomic_load(&probe->groups)));
		set_asked(probe, 0);
	}
	return NULL;
}

static bool start(struct probe *probe)
{
	probe->running = hami_thread(answer, probe) == 0;
	return probe->running;
}

enum hami_outstanding hami_probe(unsigned int slice, int groups)
{
	struct probe *probe = &probes[slice];
	if (!probe->running && !start(probe))
		return hami_outstanding_sample(slice, groups);
	if (atomic_load(&probe->asked)) /* before, and not answered yet */
		return HAMI_SOMETHING_OUTSTANDING;
	atomic_store(&probe->groups, groups);
	set_asked(probe, 1);
	for (int64_t end = hami_clock_steady() + PATIENCE_NS, left; atomic_load(&probe->asked);) {
		if ((left = end - hami_clock_steady()) <= 0)
			return HAMI_SOMETHING_OUTSTANDING;
		wait_while(probe, 1, &(struct timespec){.tv_nsec = left});
	}
	return (enum hami_outstanding)atomic_load(&probe->answer);
}

void hami_probe_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		if (!probes[i].running)
			continue;
		probes[i].running = false;
		atomic_store(&probes[i].asked, 0);
	}
}
