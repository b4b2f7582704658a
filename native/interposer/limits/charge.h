/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charges for device memory, with what is logged when a request is refused. Bytes, on each slice of a mask. Without
 * limits nothing can be charged, and a release does nothing. Thread-safe, not async-signal-safe; the locks are the
 * regions'.
 */
#ifndef HAMI_CHARGE_H
#define HAMI_CHARGE_H
#include <stdint.h>

#include "base/table.h"

static inline uint32_t hami_only(unsigned int slice)
{
	return 1u << slice;
}

/*
 * Where the processes of a slice are limited in number: makes this one of them before it asks the driver for anything. 0,
 * or -errno when it must not use the slice. Elsewhere a process joins at its first charge.
 */
int hami_slice_join(unsigned int slice);
/* Charges `bytes` on all of `slices`, or on none: 0, or -errno when the request must be refused. */
int hami_memory_charge(uint32_t slices, uint64_t bytes);
/* Gives back what was charged. */
void hami_memory_release(uint32_t slices, uint64_t bytes);
void hami_memory_release_sums(const struct hami_sums *sums);
/* Counts a request that the limits allowed and the driver refused, as others hold the GPUs' memory. */
void hami_memory_lacking(uint32_t slices, uint64_t bytes);

#endif
