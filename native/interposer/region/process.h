/* SPDX-License-Identifier: Apache-2.0 */
/* This process's limits and its account: the one region, opened when it is first asked for. */
#ifndef HAMI_PROCESS_H
#define HAMI_PROCESS_H
#include "region/region.h"

/*
 * Returns the region of this process's step; NULL when there are no limits that can be trusted, and then the
 * GPU stays closed. The first call reads the records and logs what is wrong with them. Takes no lock after
 * that; thread-safe, not async-signal-safe.
 */
struct hami_region *hami_region(void);

/*
 * Opens the usage file again in a forked child; called before the driver opens its files. When a process ends,
 * Linux closes the file with the highest number first, so this one, with the slot's lock, goes after the
 * driver's: nobody takes the process's memory back before the driver has it. Thread-safe.
 */
void hami_process_before_driver(void);

/* In a forked child: the region has no slot yet. Opens nothing. */
void hami_process_forked(void);

#endif
