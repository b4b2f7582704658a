/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process can still have on the host: of the machine, and of its cgroups, in which the job's limit
 * is. Takes no lock; not async-signal-safe.
 */
#ifndef HAMI_HOST_ROOM_H
#define HAMI_HOST_ROOM_H
#include <stdint.h>

/* Returns bytes. What cannot be read does not count as a limit. */
uint64_t hami_host_room(void);

#endif
