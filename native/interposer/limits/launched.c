/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/launched.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/table.h"
#include "driver/access.h"
#include "limits/ending.h"
#include "limits/gate.h"
#include "limits/hold.h"
#include "limits/placeholder.h"
#include "region/process.h"
#include "region/times.h"

_Atomic uint64_t hami_launch_flag;

static struct launched {
	_Atomic uint32_t resting; /* futex: 1 while the keeper sleeps */
	_Atomic bool woken;       /* since it last slept */
} launched[HAMI_SLICES];

void hami_launched_wake(unsigned int slice)
{
	struct launched *l = &launched[slice];
	atomic_store(&l->woken, true);
	if (atomic_exchange(&l->resting, 0))
		syscall(SYS_futex, &l->resting, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Returns the slice that this thread's launch is on, as a mask; all of them where that cannot be told. */
static uint32_t slices_of_launch(void)
{
	const struct real_cuda *real = hami_resolved_cuda();
	int slice = real ? hami_current_slice(real) : -1;
	return slice < 0 ? (1u << hami_slice_count()) - 1 : 1u << slice;
}

int64_t hami_launch_slow(void *stream, bool per_thread)
{
	if (atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) & HAMI_LAUNCH_HELD)
		hami_hold_enter(HAMI_HOLD_WORK);
	if (atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) & HAMI_LAUNCH_HINTED)
		hami_placeholder_launching(stream, per_thread);
	const uint32_t slices = slices_of_launch();
	const uint64_t any = HAMI_LAUNCH_TIMED | HAMI_LAUNCH_WATCHED(slices) | HAMI_LAUNCH_FIRST(slices) |
			     HAMI_LAUNCH_GATED(slices);
	if (!(atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) & any))
		return 0; /* it was about another slice */
	uint64_t flags =
		atomic_fetch_and(&hami_launch_flag, ~(HAMI_LAUNCH_WATCHED(slices) | HAMI_LAUNCH_TIMED |
						      HAMI_LAUNCH_FIRST(slices)));
	int64_t begun = 0;
	for (uint32_t left = slices; left; left &= left - 1)
		if (flags & HAMI_LAUNCH_FIRST(left & -left))
			hami_region_note_launch(hami_slice_region((unsigned int)__builtin_ctz(left)));
	if (flags & HAMI_LAUNCH_TIMED)
		begun = hami_clock_steady();
	for (uint32_t left = slices; left; left &= left - 1) {
		const unsigned int slice = (unsigned int)__builtin_ctz(left);
		const uint32_t only = 1u << slice;
		if (flags & HAMI_LAUNCH_GATED(only))
			hami_gate_pass(slice, stream, per_thread);
		if (flags & (HAMI_LAUNCH_GATED(only) | HAMI_LAUNCH_WATCHED(only))) {
			hami_ending_woken(slice);
			hami_launched_wake(slice);
		}
	}
	return begun;
}

void hami_launch_slow_end(void *stream, bool per_thread)
{
	const uint64_t flags = atomic_load_explicit(&hami_launch_flag, memory_order_relaxed);
	if (flags & HAMI_LAUNCH_HINTED) {
		atomic_fetch_and(&hami_launch_flag, ~HAMI_LAUNCH_HINTED);
		hami_placeholder_launched();
	}
	if (flags & HAMI_LAUNCH_HELD)
		hami_hold_leave(HAMI_HOLD_WORK);
	if (!(flags & HAMI_LAUNCH_GATED(UINT16_MAX)))
		return;
	for (uint32_t left = slices_of_launch(); left; left &= left - 1)
		if (flags & HAMI_LAUNCH_GATED(left & -left))
			hami_gate_launched((unsigned int)__builtin_ctz(left), stream, per_thread);
}

void hami_launched_time(bool timed)
{
	if (timed)
		atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_TIMED);
	else
		atomic_fetch_and(&hami_launch_flag, ~HAMI_LAUNCH_TIMED);
}

bool hami_launched(unsigned int slice)
{
	const uint64_t watched = HAMI_LAUNCH_WATCHED(1u << slice);
	return !(atomic_fetch_or(&hami_launch_flag, watched) & watched);
}

bool hami_launched_wait(unsigned int slice, int64_t most)
{
	struct launched *l = &launched[slice];
	struct timespec t = {.tv_sec = most / HAMI_NS_PER_S, .tv_nsec = most % HAMI_NS_PER_S};
	atomic_store(&l->resting, 1);
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_WATCHED(1u << slice));
	if (!atomic_load(&l->woken))
		syscall(SYS_futex, &l->resting, FUTEX_WAIT_PRIVATE, 1, &t, NULL, 0);
	atomic_store(&l->resting, 0);
	return atomic_exchange(&l->woken, false);
}

void hami_launched_note_first(unsigned int slice)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_FIRST(1u << slice));
}

void hami_launched_gate(unsigned int slice)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_GATED(1u << slice));
}

void hami_launched_hold(void)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_HELD);
}

void hami_launched_ends_placeholder(void)
{
	atomic_fetch_or(&hami_launch_flag, HAMI_LAUNCH_HINTED);
}

void hami_launched_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		if (!atomic_load(&launched[i].resting) && !atomic_load(&launched[i].woken))
			continue;
		atomic_store(&launched[i].resting, 0);
		atomic_store(&launched[i].woken, false);
	}
	if (atomic_load(&hami_launch_flag))
		atomic_store(&hami_launch_flag, 0);
}
