/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the GPU's compute engine took on a context and when it let it go, as the resource manager records it for any
 * user (docs/adr/045-the-gpus-own-scheduler.md): exactly for this process; of other users without saying whose.
 *
 * For one thread of each slice, its keeper's: no lock. Not async-signal-safe.
 */
#ifndef HAMI_SWITCHES_H
#define HAMI_SWITCHES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arbitration/slice.h"
#include "arbitration/terms.h"
#include "arbitration/use.h"
#include "driver/rm_objects.h"

/*
 * Begins to record, through a descriptor and client of this process; `target` is one of its channels, as from
 * hami_objects_channels(). 0, or -errno when the driver does not; -ENOTSUP in a PID namespace, where this process
 * does not know its number in the records, and the driver (before 555) does not tell its channels' ids.
 */
int hami_switches_open(unsigned int slice, const struct hami_target *target);
/* The timeslices of this process and of another who shares alike, ns; and the other's if nobody shortens it. */
struct hami_lengths {
	int64_t own_slice, others_slice, others_longest;
};
/*
 * Writes this process's switches since the last call to `list`, at most `most`, in order, in ns of
 * hami_clock_shared(), and adds to *stays. Returns how many switches; -ESTALE when the client has gone: open again.
 * -ENODATA when records were lost.
 */
long hami_switches_read(unsigned int slice, struct hami_switch *list, size_t most,
			const struct hami_lengths *lengths, struct hami_stays *stays);
/*
 * Returns who else is on the engine at `now` (hami_clock_shared()), by what was read last, and sets the number of that
 * process; 0 where it is another user's.
 */
struct hami_visit hami_switches_other(unsigned int slice, int64_t now, uint32_t *pid);
/* Returns this process's number in the records; 0: not known yet. */
uint32_t hami_switches_own_pid(unsigned int slice);
/*
 * From now on takes the switches of these processes for this one's own: their work is in one group with this one's, which
 * the records know by any of them. At most HAMI_FELLOWS_MOST; a number of 0 is passed over.
 */
#define HAMI_FELLOWS_MOST 64u
void hami_switches_set_fellows(unsigned int slice, const uint32_t *pids, size_t count);
/* In a forked child: forgets the parent's. */
void hami_switches_forked(void);

#endif
