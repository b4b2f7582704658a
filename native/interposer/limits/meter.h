/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how much of the time of a slice's GPU this process uses: by the engine's switches where the driver tells them,
 * else by when its channels were open; and by samples of whether work is outstanding.
 *
 * For one thread of each slice, its keeper's: no lock. Not async-signal-safe. Times in ns of hami_clock_shared().
 */
#ifndef HAMI_METER_H
#define HAMI_METER_H
#include <stdbool.h>
#include <stdint.h>

#include "driver/switches.h"

/* Begins at `now`. Call again after an idle time that is not to be counted. */
void hami_meter_begin(unsigned int slice, int64_t now);
/* Takes a sample. Returns whether work is outstanding; true where that cannot be known. */
bool hami_meter_sample(unsigned int slice, int64_t now);
/* The channels were opened, or paused. */
void hami_meter_opened(unsigned int slice, bool open, int64_t now);
/*
 * Sets what happened since the last call: what this process used, its samples, and who stayed on the engine. Of
 * *seen it leaves `elapsed` and `held_back` alone, of *presence, for what that cost others, `elapsed` and `slice`.
 */
void hami_meter_count(unsigned int slice, int64_t now, const struct hami_lengths *lengths,
		      struct hami_seen *seen, struct hami_presence *presence);
/*
 * Returns whether others have interrupted this process in the last HAMI_ROUND_NS or so, or `by_waiting` whether it has waited
 * for others; false when not told.
 */
bool hami_meter_contended(unsigned int slice, int64_t now, bool by_waiting);
/* Returns how much of its timeslices the process uses, permille (hami_part_filled()). */
uint32_t hami_meter_filled(unsigned int slice);
/* In a forked child. */
void hami_meter_forked(void);

#endif
