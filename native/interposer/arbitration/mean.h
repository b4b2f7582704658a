/* SPDX-License-Identifier: Apache-2.0 */
/* Moving means of what was seen, and amounts that are sensible whatever was counted. Pure. Times in ns. */
#ifndef HAMI_MEAN_H
#define HAMI_MEAN_H
#include <stdint.h>

/* Moves a mean by `now`, what was seen in `elapsed` ns (at least 1000); after `memory` ns the past does not count. */
void hami_mean_move(int64_t *mean, int64_t now, int64_t elapsed, int64_t memory);

/* Returns the amount, or the nearest from 0 to a second. */
int64_t hami_sensible(int64_t amount);

#endif
