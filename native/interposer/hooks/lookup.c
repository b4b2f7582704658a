/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks/lookup.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "driver/libc.h"
#include "driver/resolve.h"

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
	struct pair pairs[PAIRS]; /* sorted by the driver's address */
	size_t count;
	const struct real_cuda *cuda; /* whose functions are among them; NULL: not yet */
	const struct real_nvml *nvml;
	pthread_mutex_t lock;
} lookup = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int by_address(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;
	return (x->real > y->real) - (x->real < y->real);
}

/* Puts the pair in its place. Not by qsort(): that allocates, and a sanitizer's allocator may hang in a forked child. */
static void add_pair(void *real, void *hook)
{
	size_t at = lookup.count;
	if (!real)
		return;
	while (at > 0 && lookup.pairs[at - 1].real > real)
		at--;
	memmove(&lookup.pairs[at + 1], &lookup.pairs[at], (lookup.count++ - at) * sizeof *lookup.pairs);
	lookup.pairs[at] = (struct pair){real, hook};
}

/* Pairs the functions of a library that has been resolved with their hooks, once. lookup.lock is held. */
static void add_pairs(const struct real_cuda *cuda, const struct real_nvml *nvml)
{
	if (cuda && !lookup.cuda) {
#define CUDA(fn) add_pair((void *)cuda->fn, (void *)&fn);
#include "hooks.def"
		lookup.cuda = cuda;
	}
	if (nvml && !lookup.nvml) {
#define NVML(fn) add_pair((void *)nvml->fn, (void *)&fn);
#include "hooks.def"
		lookup.nvml = nvml;
	}
}

/*
 * Returns the hook for a function that the loader or cuGetProcAddress found; the function if there is none.
 */
static void *hook_for(void *function)
{
	const struct real_cuda *cuda = hami_resolved_cuda();
	const struct real_nvml *nvml = hami_resolved_nvml();
	void *hook = function;
	pthread_mutex_lock(&lookup.lock);
	if (cuda != lookup.cuda || nvml != lookup.nvml)
		add_pairs(cuda, nvml);
	const struct pair key = {.real = function};
	const struct pair *hit = bsearch(&key, lookup.pairs, lookup.count, sizeof *lookup.pairs, by_address);
	if (hit)
		hook = hit->hook;
	pthread_mutex_unlock(&lookup.lock);
	return hook;
}

/* Returns the path of the library that `address` lies in, if its file name starts with `stem`; else NULL. */
static const char *path_of(const void *address, const char *stem)
{
	Dl_info info;
	if (!dladdr(address, &info) || !info.dli_fname)
		return NULL;
	const char *slash = strrchr(info.dli_fname, '/');
	return strncmp(slash ? slash + 1 : info.dli_fname, stem, strlen(stem)) ? NULL : info.dli_fname;
}

void *hami_dlsym(void *handle, const char *name)
{
	void *function = hami_find_dlsym()(handle, name);
	if (!function || !name)
		return function;
	if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
		const char *path = hami_resolved_cuda() ? NULL : path_of(function, "libcuda.so");
		if (path)
			hami_resolve_cuda_from(handle, path);
		return hook_for(function);
	}
	if (strncmp(name, "nvml", 4) == 0) {
		const char *path = hami_resolved_nvml() ? NULL : path_of(function, "libnvidia-ml.so");
		if (path)
			hami_resolve_nvml_from(handle, path);
		return hook_for(function);
	}
	return function;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	const struct real_cuda *real = hami_resolve_cuda();
	if (!real || !real->cuGetProcAddress)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = real->cuGetProcAddress(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && *pfn)
		*pfn = hook_for(*pfn);
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
		*pfn = hook_for(*pfn);
	return result;
}

void hami_lookup_forked(void)
{
	hami_lock_renew(&lookup.lock);
	if (!lookup.count && !lookup.cuda && !lookup.nvml)
		return;
	lookup.count = 0;
	lookup.cuda = NULL;
	lookup.nvml = NULL;
}
