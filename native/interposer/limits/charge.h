/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charges for device memory, with what is logged when a request is refused. Bytes. Without limits nothing can
 * be charged, and a release does nothing. Thread-safe, not async-signal-safe; the lock is the region's.
 */
#ifndef HAMI_CHARGE_H
#define HAMI_CHARGE_H
#include <stdint.h>

/* Charges `bytes`: 0, or -errno when the request must be refused. */
int hami_memory_charge(uint64_t bytes);
/* Gives back what was charged. */
void hami_memory_release(uint64_t bytes);
/* Counts a request that the limits allowed and the driver refused, as others hold the GPU's memory. */
void hami_memory_lacking(uint64_t bytes);

#endif
