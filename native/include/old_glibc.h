/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file of the interposer: binds it to the oldest version of what it calls in glibc, so that it
 * loads in images with glibc 2.17 and later, whatever it was built with. ld.so ends a program at its start where a
 * preloaded library needs a version that the image's glibc does not have (docs/adr/072). rules.mk names the libraries
 * that the functions were in before glibc 2.34; tests/native/test_interposer_glibc.py has the newest version allowed.
 *
 * Not with sanitizers, whose own functions take the place of the newest versions.
 */
#ifndef HAMI_OLD_GLIBC_H
#define HAMI_OLD_GLIBC_H
#if defined(__x86_64__) && !defined(__ASSEMBLER__) && !defined(__SANITIZE_ADDRESS__) &&                      \
	!defined(__SANITIZE_THREAD__)

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAMI_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
/* From glibc 2.38 on its headers replace the older name by the first one. */
#define HAMI_OLD_NAME(name, old) __asm__(".symver " #name "," old)

HAMI_OLD(dladdr, "2.2.5");
HAMI_OLD(dlerror, "2.2.5");
HAMI_OLD(dlopen, "2.2.5");
HAMI_OLD(dlvsym, "2.2.5");
HAMI_OLD(pthread_attr_setstacksize, "2.2.5");
HAMI_OLD(pthread_create, "2.2.5");
HAMI_OLD(pthread_join, "2.2.5");
HAMI_OLD(pthread_key_create, "2.2.5");
HAMI_OLD(pthread_mutex_timedlock, "2.2.5");
HAMI_OLD(pthread_once, "2.2.5");
HAMI_OLD(pthread_setname_np, "2.12");
HAMI_OLD(pthread_setspecific, "2.2.5");
HAMI_OLD(pthread_sigmask, "2.2.5");
HAMI_OLD_NAME(__isoc23_sscanf, "__isoc99_sscanf@GLIBC_2.7");
HAMI_OLD_NAME(__isoc23_strtol, "strtol@GLIBC_2.2.5");
HAMI_OLD_NAME(__isoc23_strtoul, "strtoul@GLIBC_2.2.5");
HAMI_OLD_NAME(__isoc23_strtoull, "strtoull@GLIBC_2.2.5");

/* As functions these are of glibc 2.28 and 2.33; their system calls have the same arguments and structures. */
#define fstat(fd, status) ((int)syscall(SYS_fstat, fd, status))
#define stat(path, status) ((int)syscall(SYS_stat, path, status))
#define statx(fd, path, flags, mask, status) ((int)syscall(SYS_statx, fd, path, flags, mask, status))

#endif
#endif
