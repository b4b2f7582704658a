/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions for the hooks, when the limits can be enforced. Thread-safe, not async-signal-safe;
 * takes no lock of its own, so no fork handler.
 */
#ifndef HAMI_ACCESS_H
#define HAMI_ACCESS_H
#include "driver/resolve.h"

/*
 * Returns the driver's functions, with limits in force, or in a program of hami_is_secure(); NULL when limits
 * cannot be enforced, and then the hook returns HAMI_REFUSED. The first call reads the limits; once it has
 * succeeded, a call is a load and a branch.
 */
const struct real_cuda *hami_cuda(void);
#define HAMI_REFUSED CUDA_ERROR_NOT_PERMITTED

/* After a successful cuInit: finds which device is the granted one; logs when CUDA does not show it. */
void hami_find_device(const struct real_cuda *real);
/* Returns whether `device` is the granted one. */
bool hami_device_granted(CUdevice device);

#endif
