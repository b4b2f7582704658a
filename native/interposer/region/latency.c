/* SPDX-License-Identifier: Apache-2.0 */
#include "region/latency.h"

#define ROOT_2_PER_MILLION 1414214ull

unsigned int hami_latency_row(uint64_t ns)
{
	const unsigned int last = (unsigned int)HAMI_LATENCY_BUCKETS - 1;
	uint64_t even = HAMI_LATENCY_LEAST_NS;
	for (unsigned int row = 0; row < last; row += 2, even *= 2) {
		if (ns <= even)
			return row;
		if (row + 1 < last && ns <= even * ROOT_2_PER_MILLION / 1000000)
			return row + 1;
	}
	return last;
}

void hami_region_add_request(struct hami_region *region, uint64_t ns, uint64_t deadline_us)
{
	struct hami_usage *head = &region->usage->head;
	uint64_t most_us = deadline_us ? deadline_us : region->step->slo_us;
	__atomic_fetch_add(&head->latency_buckets[hami_latency_row(ns)], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&head->latency_sum_ns, ns, __ATOMIC_RELAXED);
	if (most_us && ns / 1000 >= most_us &&
	    ns > most_us * 1000) /* the first keeps the second from overflow */
		__atomic_fetch_add(&head->slo_miss_count, 1, __ATOMIC_RELAXED);
}

void hami_region_add_pause(struct hami_region *region, uint64_t ns)
{
	__atomic_fetch_add(&region->usage->head.pause_count, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&region->usage->head.paused_ns, ns, __ATOMIC_RELAXED);
}
