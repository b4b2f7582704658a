/* SPDX-License-Identifier: Apache-2.0 */
/* Locks in a forked child. */
#ifndef HAMI_LOCK_H
#define HAMI_LOCK_H

#include <pthread.h>

/*
 * Makes a lock of the parent's free in its forked child; for the child's only thread, in a fork handler. A lock that
 * is free is only read: most children of most programs use no GPU, and a page that is written is copied for them.
 */
void hami_lock_renew(pthread_mutex_t *lock);

#endif
