/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libcuda.so.1 and libnvidia-ml.so.1, by their exported names, as hooks.def lists them.
 *
 * Thread-safe, not async-signal-safe. One lock, over nothing else. Once a library's functions are
 * known, they stay as they are, and reading them takes no lock.
 */
#ifndef HAMI_RESOLVE_H
#define HAMI_RESOLVE_H

#define __CUDA_API_VERSION_INTERNAL /* the versioned names, and the old ones beside them */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <cuda.h>
#include <nvml.h>
#pragma GCC visibility pop

#include <stdbool.h>

/* One member for each row of hooks.def; NULL where the driver lacks the function. */
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
 * Return the library's functions; the library is loaded if the application has not. NULL when there is none.
 */
const struct real_cuda *hami_resolve_cuda(void);
const struct real_nvml *hami_resolve_nvml(void);

/* Return the same when they are known already, else NULL. Load nothing. */
const struct real_cuda *hami_resolved_cuda(void);
const struct real_nvml *hami_resolved_nvml(void);

/* Read the functions of the library that the application loaded from `path`, and keep it loaded; `handle` leads to it. */
void hami_resolve_cuda_from(void *handle, const char *path);
void hami_resolve_nvml_from(void *handle, const char *path);

/* In a forked child: what was not finished is read again. */
void hami_resolve_forked(void);

#endif
