/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process can still have on the host: of the machine, and of its cgroups, in which the job's limit
 * is. Takes no lock: one thread; not async-signal-safe.
 */
#ifndef HAMI_HOST_ROOM_H
#define HAMI_HOST_ROOM_H
#include <stdint.h>

/* Returns bytes. A limit that is not there is none; 0 where it cannot be asked for, as the process has no descriptor left. */
uint64_t hami_host_room(void);

#endif
