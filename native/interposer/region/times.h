/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the job's processes first did something on the GPU, and when they last did, in the usage record
 * (`hami-hpc trace`). By CLOCK_REALTIME; of several processes the first one counts. Thread-safe,
 * async-signal-safe; no fork handler, as there is no lock.
 */
#ifndef HAMI_TIMES_H
#define HAMI_TIMES_H
#include "region/region.h"

/* Notes that a context was made now, unless one was made before. */
void hami_region_note_context(struct hami_region *region);

/* Notes that a kernel or graph is launched now, unless one was before; as use of the GPU, too. */
void hami_region_note_launch(struct hami_region *region);

/* Notes that work of this process is on the GPU now. */
void hami_region_note_use(struct hami_region *region);

/* Notes that the job wants more than its cores, at `now` (hami_clock_shared()). */
void hami_region_note_more(struct hami_region *region, int64_t now);

#endif
