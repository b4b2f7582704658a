/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resource manager's objects that this process makes, whoever asks for them (libcuda, Vulkan, OpenGL, the
 * program itself), learned from the requests on /dev/nvidiactl: device memory, which is charged, and
 * channels, with the two controls that act on them: pausing them and setting the timeslice of their group.
 * Both work for any user on his own objects.
 *
 * Thread-safe. No lock is held over an ioctl. After fork the child's list is stale: its descriptors are the
 * parent's clients, so hami_rm_forked() empties it.
 */
#ifndef HAMI_RM_H
#define HAMI_RM_H
#include <stdbool.h>
#include <stdint.h>

/* Number of channel groups at work on the compute engine; grows with contexts. */
int hami_rm_groups(void);
/* Number of them that there ever were. */
unsigned int hami_rm_groups_ever(void);
/* Pauses (true) or resumes the channels of every compute group. 0, or -errno when the driver refuses. */
int hami_rm_pause(bool paused);
/* Sets the timeslice of every compute group now and of those made later, in microseconds; 0 leaves libcuda's.
 */
int hami_rm_timeslice(uint64_t microseconds);
void hami_rm_forked(void);

/* Called by the ioctl hook when libcuda has made a compute group or channel (compute.c). No lock is held. */
void hami_compute_begin(void);

#endif
