/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/resolve.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/lock.h"
#include "driver/libc.h"

static struct {
	struct real_cuda cuda;
	struct real_nvml nvml;
	_Atomic bool cuda_ready, nvml_ready;
	pthread_mutex_t lock;
} resolved = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* resolved.lock is held. */
static void fill_cuda(void *handle)
{
	hami_dlsym_fn *lookup = hami_find_dlsym();
#define CUDA(fn) resolved.cuda.fn = (__typeof__(resolved.cuda.fn))lookup(handle, #fn);
#define CUDA_PLAIN CUDA
#include "hooks.def"
	resolved.cuda_ready = true;
}

/* resolved.lock is held. */
static void fill_nvml(void *handle)
{
	hami_dlsym_fn *lookup = hami_find_dlsym();
#define NVML(fn) resolved.nvml.fn = (__typeof__(resolved.nvml.fn))lookup(handle, #fn);
#define NVML_PLAIN NVML
#include "hooks.def"
	resolved.nvml_ready = true;
}

static void fill(_Atomic bool *ready, void (*fill_from)(void *), void *handle)
{
	pthread_mutex_lock(&resolved.lock);
	if (!*ready)
		fill_from(handle);
	pthread_mutex_unlock(&resolved.lock);
}

/* Loads the library if need be and reads its functions. Keeps the handle for the life of the process. */
static bool ensure(_Atomic bool *ready, void (*fill_from)(void *), const char *soname)
{
	if (*ready)
		return true;
	void *handle = dlopen(soname, RTLD_LAZY | RTLD_LOCAL);
	if (handle)
		fill(ready, fill_from, handle);
	return *ready;
}

const struct real_cuda *hami_resolve_cuda(void)
{
	return ensure(&resolved.cuda_ready, fill_cuda, "libcuda.so.1") ? &resolved.cuda : NULL;
}

const struct real_nvml *hami_resolve_nvml(void)
{
	return ensure(&resolved.nvml_ready, fill_nvml, "libnvidia-ml.so.1") ? &resolved.nvml : NULL;
}

const struct real_cuda *hami_resolved_cuda(void)
{
	return resolved.cuda_ready ? &resolved.cuda : NULL;
}

const struct real_nvml *hami_resolved_nvml(void)
{
	return resolved.nvml_ready ? &resolved.nvml : NULL;
}

void hami_resolve_cuda_from(void *handle)
{
	fill(&resolved.cuda_ready, fill_cuda, handle);
}

void hami_resolve_nvml_from(void *handle)
{
	fill(&resolved.nvml_ready, fill_nvml, handle);
}

void hami_resolve_forked(void)
{
	hami_lock_renew(&resolved.lock);
}
