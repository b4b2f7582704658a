/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resource manager's objects that libcuda makes for this process, learned from its own ioctls on
 * /dev/nvidiactl, and the two controls that act on them: pausing compute channels and setting the timeslice
 * of their group. Both work for any user on his own objects. Structures and numbers: NVIDIA's open kernel
 * modules (nvos.h, ctrl2080fifo.h, ctrla06c.h), seen on driver 580.159.
 *
 * Thread-safe. The list's lock is never held over an ioctl. After fork the child's list is stale: its
 * descriptors are the parent's clients, so hami_rm_forked() empties it.
 */
#ifndef HAMI_RM_H
#define HAMI_RM_H
#include <stdbool.h>
#include <stdint.h>

/* Number of compute channel groups alive; grows with contexts. */
int hami_rm_groups(void);
/* Pauses (true) or resumes the channels of every compute group. 0, or -errno when the driver refuses. */
int hami_rm_pause(bool paused);
/* Sets the timeslice of every compute group now and of those made later, in microseconds; 0 leaves libcuda's.
 */
int hami_rm_timeslice(uint64_t microseconds);
void hami_rm_forked(void);

/* Called by the ioctl hook when libcuda has made a compute group or channel (compute.c). No lock is held. */
void hami_compute_begin(void);

#endif
