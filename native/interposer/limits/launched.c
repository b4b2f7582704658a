/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/launched.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "limits/ending.h"
#include "limits/gate.h"
#include "region/process.h"
#include "region/times.h"

_Atomic int hami_launch_flag;

static struct {
	_Atomic uint32_t resting; /* futex: 1 while the keeper sleeps */
	_Atomic bool woken;       /* since it last slept */
} launched;

void hami_launched_wake(void)
{
	atomic_store(&launched.woken, true);
	if (atomic_exchange(&launched.resting, 0))
		syscall(SYS_futex, &launched.resting, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int64_t hami_launch_slow(void *stream, bool per_thread)
{
	int flags = atomic_fetch_and(&hami_launch_flag,
				     ~(HAMI_LAUNCH_WATCHED | HAMI_LAUNCH_TIMED | HAMI_LAUNCH_FIRST));
	if (flags & HAMI_LAUNCH_FIRST)
		hami_region_note_launch(hami_region());
	int64_t begun = flags & HAMI_LAUNCH_TIMED ? hami_clock_steady() : 0;
	if (flags & HAMI_LAUNCH_GATED)
		hami_gate_pass(stream, per_thread);
	if (flags & (HAMI_LAUNCH_GATED | HAMI_LAUNCH_WATCHED)) {
		hami_ending_woken();
		hami_launched_wake();
	}
	return begun;
}

void hami_launched_time(bool timed)
{
	if (timed)
		atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_TIMED);
	else
		atomic_fetch_and(&hami_launch_flag, ~HAMI_LAUNCH_TIMED);
}

bool hami_launched(void)
{
	return !(atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_WATCHED) & HAMI_LAUNCH_WATCHED);
}

bool hami_launched_wait(int64_t most)
{
	struct timespec t = {.tv_sec = most / HAMI_NS_PER_S, .tv_nsec = most % HAMI_NS_PER_S};
	atomic_store(&launched.resting, 1);
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_WATCHED);
	if (!atomic_load(&launched.woken))
		syscall(SYS_futex, &launched.resting, FUTEX_WAIT_PRIVATE, 1, &t, NULL, 0);
	atomic_store(&launched.resting, 0);
	return atomic_exchange(&launched.woken, false);
}

void hami_launched_note_first(void)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_FIRST);
}

void hami_launched_gate(void)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_GATED);
}

void hami_launched_forked(void)
{
	if (!atomic_load(&launched.resting) && !atomic_load(&launched.woken) &&
	    !atomic_load(&hami_launch_flag))
		return;
	atomic_store(&launched.resting, 0);
	atomic_store(&launched.woken, false);
	atomic_store(&hami_launch_flag, 0);
}
