/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The histogram and the pauses in the usage record (region/latency.h), from two threads at once. argv[1] is the
 * step's limits record, with an slo of 10 ms.
 */
#include "region/latency.h"

#include <pthread.h>

#include "check.h"
#include "region/record.h"

#define MS 1000000ull

static struct hami_region region;

static void every_time_has_a_row(void)
{
	CHECK(hami_latency_row(0) == 0 && hami_latency_row(64000) == 0);
	CHECK(hami_latency_row(64001) == 1 && hami_latency_row(90509) == 1);
	CHECK(hami_latency_row(90510) == 2 && hami_latency_row(128000) == 2);
	CHECK(hami_latency_row(128001) == 3 && hami_latency_row(181019) == 3);
	CHECK(hami_latency_row(64000ull << 20) == 40 && hami_latency_row((64000ull << 20) + 1) == 41);
	CHECK(hami_latency_row(UINT64_MAX) == 41);
	unsigned int before = 0;
	for (uint64_t ns = 1; ns < 100000 * MS; ns += ns / 50 + 1) { /* never falls, and leaves no row out */
		unsigned int row = hami_latency_row(ns);
		CHECK(row == before || row == before + 1);
		before = row;
	}
	CHECK(before == 41);
}

static void *serve(void *unused)
{
	for (int i = 0; i < 10000; i++) {
		hami_region_add_request(&region, MS, 0);
		hami_region_add_pause(&region, 3);
	}
	return unused;
}

static void what_two_threads_add_is_all_there(void)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, serve, NULL) == 0);
	serve(NULL);
	CHECK(pthread_join(other, NULL) == 0);
	const struct hami_usage *head = &region.usage->head;
	CHECK(head->latency_buckets[hami_latency_row(MS)] == 20000 && head->latency_sum_ns == 20000 * MS);
	CHECK(head->pause_count == 20000 && head->paused_ns == 60000 && head->slo_miss_count == 0);
}

static void a_deadline_counts_before_the_slo(void)
{
	uint64_t *misses = &region.usage->head.slo_miss_count;
	hami_region_add_request(&region, 10 * MS, 0);
	CHECK(*misses == 0);
	hami_region_add_request(&region, 10 * MS + 1, 0);
	CHECK(*misses == 1);
	hami_region_add_request(&region, 10 * MS + 1, 20000);
	CHECK(*misses == 1);
	hami_region_add_request(&region, 2 * MS, 1999);
	CHECK(*misses == 2);
	hami_region_add_request(&region, 2 * MS, UINT64_MAX); /* more than a number of ns holds */
	hami_region_add_request(&region, 2 * MS, UINT64_MAX / 1000 + 1);
	CHECK(*misses == 2);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	every_time_has_a_row();
	CHECK(hami_region_open(&region, argv[1], 0) == 0);
	what_two_threads_add_is_all_there();
	a_deadline_counts_before_the_slo();
	return 0;
}
