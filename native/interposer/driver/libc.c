/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/libc.h"

#include <dlfcn.h>
#include <stddef.h>

#include "base/log.h"

hami_dlsym_fn *hami_real_dlsym;
hami_ioctl_fn *hami_found_ioctl;

static void *find_nothing(void *handle, const char *name)
{
	(void)handle, (void)name;
	return NULL;
}

/* Not instrumented: a sanitizer's own library calls this before it is ready. */
__attribute__((no_sanitize("address", "undefined", "thread"))) hami_dlsym_fn *hami_find_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
	hami_dlsym_fn *real = __atomic_load_n(&hami_real_dlsym, __ATOMIC_ACQUIRE);
	for (size_t i = 0; !real && i < sizeof versions / sizeof *versions; i++)
		real = (hami_dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	if (!real) {
		hami_log(0, "this C library has no dlsym of a version known to hami_hpc, "
			    "so nothing is found by it\n");
		real = find_nothing;
	}
	__atomic_store_n(&hami_real_dlsym, real, __ATOMIC_RELEASE);
	return real;
}

hami_ioctl_fn *hami_find_ioctl(void)
{
	hami_ioctl_fn *real = (hami_ioctl_fn *)hami_find_dlsym()(RTLD_NEXT, "ioctl");
	__atomic_store_n(&hami_found_ioctl, real, __ATOMIC_RELEASE);
	return real;
}
