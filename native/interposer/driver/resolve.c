/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/resolve.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "driver/libc.h"

static struct {
	struct real_cuda cuda;
	struct real_nvml nvml;
	_Atomic bool cuda_ready, nvml_ready;
	pthread_mutex_t lock;
} resolved = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Takes what was found, if nothing was before. No lock is held over the loader's calls: the loader has one of its own, and
 * the constructor of a library that is being loaded may call CUDA, and so wait for ours.
 */
static void keep_first(_Atomic bool *ready, void *place, const void *found, size_t size)
{
	pthread_mutex_lock(&resolved.lock);
	if (!*ready)
		memcpy(place, found, size);
	*ready = true;
	pthread_mutex_unlock(&resolved.lock);
}

static void fill_cuda(void *handle)
{
	hami_dlsym_fn *lookup = hami_find_dlsym();
	struct real_cuda found;
#define CUDA(fn) found.fn = (__typeof__(found.fn))lookup(handle, #fn);
#define CUDA_PLAIN CUDA
#include "hooks.def"
	keep_first(&resolved.cuda_ready, &resolved.cuda, &found, sizeof found);
}

static void fill_nvml(void *handle)
{
	hami_dlsym_fn *lookup = hami_find_dlsym();
	struct real_nvml found;
#define NVML(fn) found.fn = (__typeof__(found.fn))lookup(handle, #fn);
#define NVML_PLAIN NVML
#include "hooks.def"
	keep_first(&resolved.nvml_ready, &resolved.nvml, &found, sizeof found);
}

/* Loads the library if need be and reads its functions. Keeps the handle for the life of the process. */
static bool ensure(_Atomic bool *ready, void (*fill_from)(void *), const char *name, int flags)
{
	if (*ready)
		return true;
	void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL | flags);
	if (handle)
		fill_from(handle);
	return *ready;
}

const struct real_cuda *hami_resolve_cuda(void)
{
	return ensure(&resolved.cuda_ready, fill_cuda, "libcuda.so.1", 0) ? &resolved.cuda : NULL;
}

const struct real_nvml *hami_resolve_nvml(void)
{
	return ensure(&resolved.nvml_ready, fill_nvml, "libnvidia-ml.so.1", 0) ? &resolved.nvml : NULL;
}

const struct real_cuda *hami_resolved_cuda(void)
{
	return resolved.cuda_ready ? &resolved.cuda : NULL;
}

const struct real_nvml *hami_resolved_nvml(void)
{
	return resolved.nvml_ready ? &resolved.nvml : NULL;
}

/*
 * The program may close its handle, and the library with it: what calls it here, and what is hooked, would be gone. So the
 * library is kept, by its path; one of another namespace has none here, and is used as it is.
 */
static void resolve_from(_Atomic bool *ready, void (*fill_from)(void *), void *handle, const char *path)
{
	if (!ensure(ready, fill_from, path, RTLD_NOLOAD))
		fill_from(handle);
	dlerror(); /* the program's own lookup succeeded */
}

void hami_resolve_cuda_from(void *handle, const char *path)
{
	resolve_from(&resolved.cuda_ready, fill_cuda, handle, path);
}

void hami_resolve_nvml_from(void *handle, const char *path)
{
	resolve_from(&resolved.nvml_ready, fill_nvml, handle, path);
}

void hami_resolve_forked(void)
{
	hami_lock_renew(&resolved.lock);
}
