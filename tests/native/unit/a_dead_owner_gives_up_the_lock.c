/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that die holding the region's lock, in the middle of an update, or holding memory: the next one
 * goes on with sums that are true. argv[1] is a limits record (the runner makes it) of 1000 MiB.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "region/record.h"

#define MIB (1ull << 20)

static struct hami_region region;

/* In a child: takes 600 MiB, then dies as `how` says. */
static void dies(int how)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		hami_region_forget_slot(&region);
		CHECK(hami_region_charge(&region, 600 * MIB) == 0);
		struct hami_usage_file *u = region.usage;
		if (how > 0) /* holds the lock */
			__atomic_store_n(&u->head.lock, (uint32_t)region.slot + 1, __ATOMIC_SEQ_CST);
		if (how > 1) /* and has changed some of the sums */
			u->head.used_bytes += 123 * MIB;
		if (how > 2) {
			u->slots[region.slot].used_bytes += 7 * MIB;
			u->steps[u->slots[region.slot].step_row].used_bytes = 0;
		}
		kill(getpid(), SIGKILL);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	CHECK(hami_region_open(&region, argv[1], 0) == 0);
	CHECK(hami_region_charge(&region, 100 * MIB) == 0);
	struct hami_usage_file *u = region.usage;
	for (int how = 0; how < 4; how++) {
		dies(how);
		CHECK(hami_region_charge(&region, 900 * MIB) == 0); /* fits once the dead one's is back */
		CHECK(u->head.used_bytes == 1000 * MIB);
		CHECK(u->head.processes == 1);
		CHECK(u->head.lock == 0);
		CHECK(hami_region_charge(&region, 1) == -ENOMEM);
		hami_region_release(&region, 900 * MIB);
	}
	CHECK(u->head.peak_bytes <= 1000 * MIB);
	CHECK(u->head.reclaimed_bytes >= 4 * 600 * MIB);
	/* Sizes that would wrap around are refused like others. */
	CHECK(hami_region_charge(&region, UINT64_MAX) == -ENOMEM);
	CHECK(hami_region_charge(&region, UINT64_MAX - 50 * MIB) == -ENOMEM);
	CHECK(u->head.used_bytes == 100 * MIB);
	return 0;
}
