/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks/hint.h"

#include <errno.h>

#include "base/clock.h"
#include "limits/latency.h"
#include "limits/launched.h"
#include "limits/placeholder.h"
#include "region/latency.h"
#include "region/process.h"

#define HAMI_HPC_INTERPOSER
#include "hami_hpc.h"

#define EXPORTED __attribute__((visibility("default")))

static _Thread_local struct {
	int64_t begun; /* steady; 0: none is under way */
	uint64_t deadline_us;
} hint;

EXPORTED int hami_hint_begin(uint64_t deadline_us)
{
	if (!hami_region())
		return -ENOSYS;
	if (hint.begun)
		return -EBUSY;
	hami_latency_end();
	hint.deadline_us = deadline_us;
	hint.begun = hami_clock_steady();
	return 0;
}

EXPORTED int hami_hint_end(void)
{
	if (!hami_region())
		return -ENOSYS;
	if (!hint.begun)
		return -EINVAL;
	int64_t took = hami_clock_steady() - hint.begun;
	hami_placeholder_end();
	hint.begun = 0;
	hami_region_add_request(hami_latency_region(), (uint64_t)took, hint.deadline_us);
	return 0;
}

EXPORTED int hami_hint_soon(void)
{
	if (!hami_region())
		return -ENOSYS;
	if (hami_placeholder_begin(HAMI_PLACEHOLDER_NS, true))
		hami_launched_ends_placeholder();
	return 0;
}

void hami_hint_forked(void)
{
	hint.begun = 0;
}
