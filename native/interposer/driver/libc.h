/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library's own dlsym and ioctl, which this library stands in for. Thread-safe; no lock, so no fork
 * handler. The first call of each looks the function up (not async-signal-safe), later ones read a pointer.
 */
#ifndef HAMI_LIBC_H
#define HAMI_LIBC_H

typedef void *hami_dlsym_fn(void *, const char *);
typedef int hami_ioctl_fn(int, unsigned long, ...);

/* NULL until found; hooks/dlsym.S reads the first. */
extern hami_dlsym_fn *hami_real_dlsym __attribute__((visibility("hidden")));
extern hami_ioctl_fn *hami_found_ioctl __attribute__((visibility("hidden")));

hami_dlsym_fn *hami_find_dlsym(void);
hami_ioctl_fn *hami_find_ioctl(void);

/* On the path of each allocation, so it is inlined. */
static inline hami_ioctl_fn *hami_real_ioctl(void)
{
	hami_ioctl_fn *real = __atomic_load_n(&hami_found_ioctl, __ATOMIC_ACQUIRE);
	return __builtin_expect(real != 0, 1) ? real : hami_find_ioctl();
}

#endif
