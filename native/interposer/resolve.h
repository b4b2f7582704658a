/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAMI_RESOLVE_H
#define HAMI_RESOLVE_H
#include "interposer.h"

/* The driver's functions, limits or not; NULL when there is no libcuda.so.1. Thread-safe. */
const struct real_cuda *hami_resolve_cuda(void);
/* NVML's; with `load` the library is brought in when the application has not. */
const struct real_nvml *hami_resolve_nvml(bool load);

#endif
