/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record's lock names somebody who will not let go. The dead (whose slot would be the next one's own) and
 * slots that do not exist are taken over; the living are waited for, and then the request is refused: a
 * process that stands still, or this one itself, by a user's hand. When the owner goes, everybody goes on.
 * argv[1] is a limits record of 1000 MiB.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "region/glance.h"
#include "region/record.h"

#define MIB (1ull << 20)

static struct hami_region region;

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void set_lock(uint32_t word)
{
	__atomic_store_n(&region.usage->head.lock, word, __ATOMIC_SEQ_CST);
}

/* The slot that this process would take first dies holding the lock; whoever comes passes it by. */
static void the_next_in_a_dead_owners_place(void)
{
	uint32_t first = (uint32_t)getpid() % HAMI_USAGE_SLOT_COUNT;
	set_lock(first + 1);
	CHECK(hami_region_charge(&region, 100 * MIB) == 0);
	CHECK(region.slot >= 0 && region.slot != (int32_t)first);
	CHECK(region.usage->head.lock == 0);
	CHECK(region.usage->head.used_bytes == 100 * MIB);
}

static void a_live_owner_that_stands_still(void)
{
	int ends[2];
	char told;
	CHECK(pipe(ends) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		hami_region_forget_slot(&region);
		CHECK(hami_region_charge(&region, 50 * MIB) == 0);
		set_lock((uint32_t)region.slot + 1);
		CHECK(write(ends[1], "x", 1) == 1);
		pause();
		_exit(1);
	}
	CHECK(read(ends[0], &told, 1) == 1);
	double begin = seconds();
	CHECK(hami_region_charge(&region, 1) == -ETIMEDOUT);
	double waited = seconds() - begin;
	CHECK(waited * 1000 >= HAMI_LOCK_PATIENCE_MS * 0.5);
	CHECK(waited * 1000 < HAMI_LOCK_PATIENCE_MS * 10 + 20000); /* a busy machine sleeps longer */
	hami_region_release(&region, 30 * MIB);                    /* counts in the slot, not in the sums */
	CHECK(hami_region_own(&region) == 70 * MIB);
	CHECK(region.usage->head.used_bytes == 150 * MIB);
	struct hami_view view;
	hami_region_view(&region, &view);
	CHECK(view.free <= view.limit);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
	CHECK(hami_region_charge(&region, 930 * MIB) == 0); /* all of it is back, the release included */
	CHECK(region.usage->head.used_bytes == 1000 * MIB);
	hami_region_release(&region, 930 * MIB);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	CHECK(hami_region_open(&region, argv[1], 0) == 0);
	the_next_in_a_dead_owners_place();
	set_lock((uint32_t)region.slot + 1); /* its own name, though it does not hold the lock */
	CHECK(hami_region_charge(&region, 1 * MIB) == -ETIMEDOUT);
	set_lock(UINT32_MAX >> 1); /* a slot that there is none of */
	CHECK(hami_region_charge(&region, 2 * MIB) == 0);
	set_lock(0x80000000u); /* nobody, yet contended */
	hami_region_release(&region, 2 * MIB);
	CHECK(region.usage->head.used_bytes == 100 * MIB);
	a_live_owner_that_stands_still();
	CHECK(region.usage->head.lock == 0);
	return 0;
}
