/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the GPU's compute engine took on a context of this process and when it let it go, as the resource manager
 * records it for any user's own processes (docs/adr/045-the-gpus-own-scheduler.md).
 *
 * For one thread, the keeper's: no lock. Not async-signal-safe.
 */
#ifndef HAMI_SWITCHES_H
#define HAMI_SWITCHES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arbitration/use.h"
#include "driver/rm_objects.h"

/*
 * Begins to record, through a descriptor and client of this process; `target` as from hami_objects_channels().
 * 0, or -errno when the driver does not, or when this process does not know its number there (a PID namespace).
 */
int hami_switches_open(const struct hami_target *target);
/*
 * Writes the switches since the last call to `list`, at most `most`, in order, in ns of hami_clock_shared().
 * Returns how many; -ESTALE when the client has gone: open again. -ENODATA when records were lost.
 */
long hami_switches_read(struct hami_switch *list, size_t most);
/* In a forked child: forgets the parent's. */
void hami_switches_forked(void);

#endif
