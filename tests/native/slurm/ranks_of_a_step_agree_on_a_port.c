// SPDX-License-Identifier: GPL-2.0-or-later
/* ranks.h: the port of a step's ranks, and whether some of them share a GPU. */
#include "check.h"
#include "ranks.h"

int main(void)
{
	for (uint32_t job = 1; job < 70000; job += 7) {
		for (uint32_t step = 0; step < 30; step++)
			CHECK(ranks_port(job, step) >= 10000 && ranks_port(job, step) < 30000);
		CHECK(ranks_port(job, 0) != ranks_port(job, 1));
		CHECK(ranks_port(job, 0) != ranks_port(job + 1, 0));
	}
	CHECK(ranks_port(0xffffffff, 0xfffffffe) < 30000);

	CHECK(!ranks_share_gpus("0", 1));
	CHECK(ranks_share_gpus("0", 2));
	CHECK(!ranks_share_gpus("0,1", 2));
	CHECK(ranks_share_gpus("GPU-1,GPU-2", 3));
	CHECK(!ranks_share_gpus("", 8)); /* no GPU at all */
	return 0;
}
