/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the usage record's head says of delays: a histogram of the times of requests, pauses. No lock, so that nobody
 * waits for a process that was stopped. Thread-safe, async-signal-safe; no fork handler.
 */
#ifndef HAMI_REGION_LATENCY_H
#define HAMI_REGION_LATENCY_H
#include "region/region.h"

/* Returns the row of the histogram for a request of `ns`: its bound is HAMI_LATENCY_LEAST_NS x sqrt(2)^row, or none. */
unsigned int hami_latency_row(uint64_t ns);

/* Counts a request of `ns`, which should have taken at most `deadline_us`; 0: at most the slo, if there is one. */
void hami_region_add_request(struct hami_region *region, uint64_t ns, uint64_t deadline_us);

/* Counts a pause of `ns` that has ended. */
void hami_region_add_pause(struct hami_region *region, uint64_t ns);

#endif
