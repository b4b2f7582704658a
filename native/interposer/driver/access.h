/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions for the hooks, when the limits can be enforced. Thread-safe, not async-signal-safe;
 * takes no lock of its own, so no fork handler.
 */
#ifndef HAMI_ACCESS_H
#define HAMI_ACCESS_H
#include <stdint.h>

#include "driver/resolve.h"

/*
 * Returns the driver's functions, with limits in force, or in a program of hami_is_secure(); NULL when limits
 * cannot be enforced, and then the hook returns HAMI_REFUSED. The first call reads the limits; once it has
 * succeeded, a call is a load and a branch.
 */
const struct real_cuda *hami_cuda(void);
#define HAMI_REFUSED CUDA_ERROR_NOT_PERMITTED

/* After a successful cuInit: finds which device each slice is on; logs when CUDA shows none of them. */
void hami_find_devices(const struct real_cuda *real);
/* Returns the slice that is on `device`; -1 when the device is none of the step's. */
int hami_slice_of_device(CUdevice device);
/* Returns the device that a slice is on, which hami_slice_of_device() has told. */
CUdevice hami_device_of_slice(unsigned int slice);
/*
 * Returns the slice of the current context's device; -1 when there is no such context. In a process with one slice
 * that is 0, and nobody is asked.
 */
int hami_current_slice(const struct real_cuda *real);
/* Returns the mask of the slices whose devices CUDA shows here. */
uint32_t hami_visible_slices(void);

#endif
