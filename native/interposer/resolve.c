/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an application reaches the hooks: by linking (the exported names), by dlsym, and by cuGetProcAddress.
 * The last two are answered by address: the driver says what it would have given, and if that is a function
 * that has a hook, the hook is given instead. So names, versions, per-thread-stream flags and the query's
 * status stay the driver's.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer.h"
#include "resolve.h"

typedef void *dlsym_fn(void *, const char *);

__attribute__((visibility("hidden"))) dlsym_fn *hami_real_dlsym; /* read by dlsym.S */
__attribute__((visibility("hidden"))) dlsym_fn *hami_find_dlsym(void);
__attribute__((visibility("hidden"))) void *hami_dlsym(void *handle, const char *name);

struct pair {
	void *real;
	void *hook;
};

/* One for each hook. */
enum {
#define CUDA(name) PAIR_OF_##name,
#define NVML CUDA
#include "hooks.def"
	PAIRS
};

static struct {
	struct real_cuda cuda;
	struct real_nvml nvml;
	struct pair pairs[PAIRS]; /* sorted by the driver's address, once */
	size_t pair_count;
	_Atomic bool cuda_ready, nvml_ready;
	pthread_mutex_t lock;
} resolved = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *find_nothing(void *handle, const char *name)
{
	(void)handle, (void)name;
	return NULL;
}

/* A sanitizer's own library asks before it is ready for instrumented code. */
__attribute__((no_sanitize("address", "undefined", "thread"))) dlsym_fn *hami_find_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
	dlsym_fn *found = __atomic_load_n(&hami_real_dlsym, __ATOMIC_ACQUIRE);
	for (size_t i = 0; !found && i < sizeof versions / sizeof *versions; i++)
		found = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	if (!found) {
		hami_log(0, "this C library has no dlsym of a version known to hami_hpc, so nothing is found "
			    "by it\n");
		found = find_nothing;
	}
	__atomic_store_n(&hami_real_dlsym, found, __ATOMIC_RELEASE);
	return found;
}

static void *lookup(void *handle, const char *name)
{
	return hami_find_dlsym()(handle, name);
}

static int by_address(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;
	return (x->real > y->real) - (x->real < y->real);
}

static void add_pair(void *real, void *hook)
{
	if (real)
		resolved.pairs[resolved.pair_count++] = (struct pair){real, hook};
}

/* resolved.lock is held. */
static void fill_cuda(void *handle)
{
#define CUDA(fn)                                                                                             \
	resolved.cuda.fn = (__typeof__(resolved.cuda.fn))lookup(handle, #fn);                                \
	add_pair((void *)resolved.cuda.fn, (void *)&fn);
#define CUDA_PLAIN(fn) resolved.cuda.fn = (__typeof__(resolved.cuda.fn))lookup(handle, #fn);
#include "hooks.def"
	qsort(resolved.pairs, resolved.pair_count, sizeof *resolved.pairs, by_address);
	resolved.cuda_ready = true;
}

static void fill_nvml(void *handle)
{
#define NVML(fn)                                                                                             \
	resolved.nvml.fn = (__typeof__(resolved.nvml.fn))lookup(handle, #fn);                                \
	add_pair((void *)resolved.nvml.fn, (void *)&fn);
#define NVML_PLAIN(fn) resolved.nvml.fn = (__typeof__(resolved.nvml.fn))lookup(handle, #fn);
#include "hooks.def"
	qsort(resolved.pairs, resolved.pair_count, sizeof *resolved.pairs, by_address);
	resolved.nvml_ready = true;
}

static void fill(_Atomic bool *ready, void (*fill_from)(void *), void *handle)
{
	pthread_mutex_lock(&resolved.lock);
	if (!*ready)
		fill_from(handle);
	pthread_mutex_unlock(&resolved.lock);
}

/* `load`: whether to bring the library in when the application has not. The handle is kept for good. */
static bool ensure(_Atomic bool *ready, void (*fill_from)(void *), const char *soname, bool load)
{
	if (*ready)
		return true;
	void *handle = dlopen(soname, RTLD_LAZY | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
	if (handle)
		fill(ready, fill_from, handle);
	return *ready;
}

const struct real_cuda *hami_resolve_cuda(void)
{
	return ensure(&resolved.cuda_ready, fill_cuda, "libcuda.so.1", true) ? &resolved.cuda : NULL;
}

const struct real_nvml *hami_resolve_nvml(bool load)
{
	return ensure(&resolved.nvml_ready, fill_nvml, "libnvidia-ml.so.1", load) ? &resolved.nvml : NULL;
}

void *hami_hook_for(void *found)
{
	void *hook = found;
	pthread_mutex_lock(&resolved.lock);
	const struct pair key = {.real = found};
	const struct pair *hit =
		bsearch(&key, resolved.pairs, resolved.pair_count, sizeof *resolved.pairs, by_address);
	if (hit)
		hook = hit->hook;
	pthread_mutex_unlock(&resolved.lock);
	return hook;
}

/* Whether `address` lies in a library whose file name starts with `stem`. */
static bool comes_from(const void *address, const char *stem)
{
	Dl_info info;
	if (!dladdr(address, &info) || !info.dli_fname)
		return false;
	const char *slash = strrchr(info.dli_fname, '/');
	return strncmp(slash ? slash + 1 : info.dli_fname, stem, strlen(stem)) == 0;
}

void *hami_dlsym(void *handle, const char *name)
{
	void *found = lookup(handle, name);
	if (!found || !name)
		return found;
	if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
		if (!resolved.cuda_ready && comes_from(found, "libcuda.so"))
			fill(&resolved.cuda_ready, fill_cuda, handle);
		return hami_hook_for(found);
	}
	if (strncmp(name, "nvml", 4) == 0) {
		if (!resolved.nvml_ready && comes_from(found, "libnvidia-ml.so"))
			fill(&resolved.nvml_ready, fill_nvml, handle);
		return hami_hook_for(found);
	}
	return found;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	const struct real_cuda *real = hami_resolve_cuda();
	if (!real || !real->cuGetProcAddress)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = real->cuGetProcAddress(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && *pfn)
		*pfn = hami_hook_for(*pfn);
	return result;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
				     CUdriverProcAddressQueryResult *status)
{
	const struct real_cuda *real = hami_resolve_cuda();
	if (!real || !real->cuGetProcAddress_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = real->cuGetProcAddress_v2(symbol, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn && *pfn)
		*pfn = hami_hook_for(*pfn);
	return result;
}
