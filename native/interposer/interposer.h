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
 * The driver's functions, with limits in force; NULL when they cannot be enforced, and then the caller
 * returns HAMI_REFUSED. The first call reads the limits. Thread-safe; a load and a branch once it has been
 * called.
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

/* ------------------------------------------------------------------------------------- charges (charge.c) */

/* Device memory that a request of `bytes` takes from the driver's heap (see there for the evidence). */
uint64_t hami_footprint(uint64_t bytes);
/* CUDA_SUCCESS, or the error that the application gets. */
CUresult hami_take(uint64_t bytes);
/* After the driver's call: remembers `address`, or gives the charge back when `result` is an error. */
CUresult hami_settle(CUresult result, CUdeviceptr address, uint64_t bytes);
/* Forgets `address` before it is freed: its bytes, or 0 when it is none of ours. */
uint64_t hami_forget(CUdeviceptr address);
/* After the driver's free of a forgotten address. */
CUresult hami_freed(CUresult result, CUdeviceptr address, uint64_t bytes);

/* The body of a hook that allocates `bytes` at `*address`: charge, ask the driver, settle. */
#define HAMI_ALLOCATE(name, address, bytes, ...)                                                             \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	uint64_t charge = hami_footprint(bytes);                                                             \
	CUresult result = hami_take(charge);                                                                 \
	if (result != CUDA_SUCCESS)                                                                          \
		return result;                                                                               \
	result = real->name(address, __VA_ARGS__);                                                           \
	return hami_settle(result, result == CUDA_SUCCESS ? *(address) : 0, charge)

/* Memory of contexts and modules of this process, as NVML measures it (overhead.c). */
CUresult hami_context_take(void);
void hami_context_settle(CUresult result);
void hami_context_gone(void);

#endif
