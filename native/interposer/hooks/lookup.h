/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an application reaches the hooks: by linking (the exported names), by dlsym, and by cuGetProcAddress.
 * The last two are answered by address: the driver says what it would have given, and if that is a function
 * that has a hook, the hook is given instead. So names, versions, per-thread-stream flags and the query's
 * status stay the driver's.
 *
 * Thread-safe, not async-signal-safe. One lock, taken inside no other; the driver, the loader and resolve.h
 * are asked before it is taken.
 */
#ifndef HAMI_LOOKUP_H
#define HAMI_LOOKUP_H

/* Answers dlsym of an ordinary handle; dlsym.S passes on RTLD_NEXT and RTLD_DEFAULT itself. */
void *hami_dlsym(void *handle, const char *name);

/* In a forked child: pairs that were being added are added again. */
void hami_lookup_forked(void);

#endif
