/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the interposer's parts share: the table of hooks and one block of state.
 *
 * Lock order: region->join, then the region's lock, then a shard of the allocation table. No lock is held
 * while the driver, NVML or the loader is called.
 */
#ifndef HAMI_INTERPOSER_H
#define HAMI_INTERPOSER_H

#define __CUDA_API_VERSION_INTERNAL /* the versioned names, and the old ones beside them */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <cuda.h>
#include <nvml.h>
#pragma GCC visibility pop

#include <stdbool.h>

#include "region.h"

/* The driver's own functions, one member a row of hooks.def; NULL where the driver lacks one. */
struct real_cuda {
#define CUDA(name) __typeof__(&name) name;
#define CUDA_PLAIN CUDA
#include "hooks.def"
};

struct real_nvml {
#define NVML(name) __typeof__(&name) name;
#define NVML_PLAIN NVML
#include "hooks.def"
};

/*
 * The driver's functions, with limits in force, or in a program of hami_is_secure(); NULL when they cannot be
 * enforced, and then the caller returns HAMI_REFUSED. The first call reads the limits. Thread-safe; a load
 * and a branch once it has been called.
 */
const struct real_cuda *hami_cuda(void);
#define HAMI_REFUSED CUDA_ERROR_NOT_PERMITTED

/* The same for NVML; without limits NVML passes through unchanged, so this is NULL only when NVML is not
 * loaded. */
const struct real_nvml *hami_nvml(void);

/* The region, valid after hami_cuda() returned non-NULL; NULL when there is none to show to NVML. */
struct hami_region *hami_region(void);

/* The hook for a driver or NVML function that the loader or cuGetProcAddress found; `found` itself if there
 * is none. */
void *hami_hook_for(void *found);

/* One line to standard error, level as in HAMI_HPC_LOG. Keeps errno. */
void hami_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* After a successful cuInit: which device is the granted one. */
void hami_find_device(const struct real_cuda *real);
bool hami_device_granted(CUdevice device);

/* Device memory, as the resource manager is asked for it (memory.c). Bytes; 0 when charged, else it does not
 * fit. */
int hami_memory_charge(uint64_t bytes);
void hami_memory_release(uint64_t bytes);
/* The limits allowed this many bytes and the driver has not as much: others hold it. */
void hami_memory_lacking(uint64_t bytes);

/*
 * Whether this program runs with more rights than its user's (set-user-ID, set-group-ID, file capabilities),
 * so that nothing of the user's may be believed or opened: then there are no limits, every hook passes
 * through, and what would use the GPU is refused.
 */
bool hami_is_secure(void);
/* Says so, once. */
void hami_refuse_secure(void);

#endif
