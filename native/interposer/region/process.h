/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's limits and its account: a region for each slice of its step, all opened when one is first asked for.
 * Slices are numbered from 0, as in the records; each is on a GPU of its own.
 */
#ifndef HAMI_PROCESS_H
#define HAMI_PROCESS_H
#include "base/table.h"
#include "region/region.h"

/*
 * Returns the region of slice 0; NULL when there are no limits that can be trusted, and then the GPUs stay closed. What
 * the records of all slices agree in can be read in it. The first call reads the records and logs what is wrong with
 * them. Takes no lock after that; thread-safe, not async-signal-safe.
 */
struct hami_region *hami_region(void);

/* Returns how many slices there are; 0 without limits. As above. */
unsigned int hami_slice_count(void);

/* Returns the region of one of the hami_slice_count() slices. Async-signal-safe. */
struct hami_region *hami_slice_region(unsigned int slice);

/* Returns the UUID of the device on which a slice is, as programs see it: a GPU's, or a MIG instance's. */
const char *hami_slice_uuid(unsigned int slice);

/* Returns the slice on the device with this UUID; -1 when it is none of this step's. */
int hami_slice_of_uuid(const char *uuid);

/* Returns what a line about one slice says of its GPU: " on GPU-..." where there are several slices, else nothing. */
const char *hami_slice_place(unsigned int slice);

/*
 * Opens the usage files again in a forked child; called before the driver opens its files. When a process ends,
 * Linux closes the file with the highest number first, so these, with the slots' locks, go after the driver's: nobody
 * takes the process's memory back before the driver has it. Thread-safe.
 */
void hami_process_before_driver(void);

/* In a forked child: the regions have no slots yet. Opens nothing. */
void hami_process_forked(void);

#endif
