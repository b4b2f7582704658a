/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/hold.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LOOK_NS 200000l /* between two looks whether somebody is inside */

static struct hold {
	_Atomic uint32_t closed; /* futex */
	_Atomic uint32_t inside, waiting;
} holds[HAMI_HOLDS];

static __thread bool passes __attribute__((tls_model("initial-exec")));

void hami_hold_pass(void)
{
	passes = true;
}

void hami_hold_enter(enum hami_hold what)
{
	struct hold *hold = &holds[what];
	if (passes)
		return;
	for (;;) {
		atomic_fetch_add(&hold->inside, 1);
		if (!atomic_load(&hold->closed))
			return;
		atomic_fetch_add(&hold->waiting, 1);
		atomic_fetch_sub(&hold->inside, 1);
		syscall(SYS_futex, &hold->closed, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
		atomic_fetch_sub(&hold->waiting, 1);
	}
}

void hami_hold_leave(enum hami_hold what)
{
	if (!passes)
		atomic_fetch_sub(&holds[what].inside, 1);
}

bool hami_hold_close(enum hami_hold what, int64_t most)
{
	const int64_t end = hami_clock_steady() + most;
	atomic_store(&holds[what].closed, 1);
	while (atomic_load(&holds[what].inside)) {
		if (hami_clock_steady() >= end) {
			hami_hold_open(what);
			return false;
		}
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
	}
	return true;
}

void hami_hold_open(enum hami_hold what)
{
	atomic_store(&holds[what].closed, 0);
	syscall(SYS_futex, &holds[what].closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool hami_hold_waits(enum hami_hold what)
{
	return atomic_load(&holds[what].waiting) != 0;
}

void hami_hold_forked(void)
{
	passes = false;
	for (int i = 0; i < HAMI_HOLDS; i++) {
		if (!atomic_load(&holds[i].closed) && !atomic_load(&holds[i].inside) &&
		    !atomic_load(&holds[i].waiting))
			continue;
		atomic_store(&holds[i].closed, 0);
		atomic_store(&holds[i].inside, 0);
		atomic_store(&holds[i].waiting, 0);
	}
}
