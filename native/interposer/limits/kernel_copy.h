/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies device memory that libcuda does not, by a kernel of our own: segments of pools where nothing is allocated
 * (docs/adr/107), arrays, pages of small allocations, and what lies behind an allocation in its last page (docs/adr/105). The
 * kernel is compiled once per context, when first needed.
 *
 * No lock: one thread prepares, before others copy. Not async-signal-safe. A forked child has none.
 */
#ifndef HAMI_KERNEL_COPY_H
#define HAMI_KERNEL_COPY_H
#include <stdbool.h>
#include <stddef.h>

#include "driver/resolve.h"

#define HAMI_KERNEL_UNIT 16 /* bytes: a copy begins and ends between two */

/* Prepares the current context. Returns why not: the driver does not compile it, or has no such functions. */
CUresult hami_kernel_copy_prepare(const struct real_cuda *real);

/*
 * Around copies on this thread: no capture of the program is spoilt. Returns the mode that was, to be given to
 * hami_kernel_copy_leave().
 */
CUstreamCaptureMode hami_kernel_copy_enter(const struct real_cuda *real);
void hami_kernel_copy_leave(const struct real_cuda *real, CUstreamCaptureMode mode);

/* Starts a copy between a device address and page-locked memory of the host, all in multiples of 16 bytes. */
CUresult hami_kernel_copy(const struct real_cuda *real, CUdeviceptr device, char *host, size_t bytes,
			  bool to_host, CUstream stream);

/* In a forked child. */
void hami_kernel_copy_forked(void);

#endif
