/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a job's records, after checks that they are root's and of this job. */
#ifndef HAMI_RECORD_H
#define HAMI_RECORD_H
#include "region/region.h"

/*
 * Opens the limits record at `limits_path`, which is slice 0's, or for another slice that beside it, and the job's
 * records beside it. 0, or -errno: -EPERM when a limits record is not root's own, or of another user's or job's,
 * -EXDEV when it is another slice's, -EPROTO when a record is of another version or damaged. Takes no lock. Not
 * thread-safe, not async-signal-safe.
 */
int hami_region_open(struct hami_region *region, const char *limits_path, unsigned int slice);

#endif
