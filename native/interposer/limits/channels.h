/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two controls on this process's own channels on a slice's GPU that the share is kept with: pausing them, and
 * setting the timeslice of their group. The driver grants both to any user on his own objects.
 *
 * Thread-safe, not async-signal-safe. No lock is held over an ioctl; no lock here, so no fork handler.
 */
#ifndef HAMI_CHANNELS_H
#define HAMI_CHANNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which channels are meant: those of these contexts, or those of all others and of none. */
struct hami_only {
	const uint64_t *contexts;
	size_t count;
	bool others;
};
/*
 * Pauses (true) or resumes the channels of every compute group; of them those that `only` names, where it is not NULL. 0, or
 * -errno when the driver refuses; then some of them may be as before. -EAGAIN when that was for channels that have just
 * gone: call again.
 */
int hami_channels_pause(unsigned int slice, bool paused, const struct hami_only *only);
/*
 * Resumes channels of other processes, by their handles: at most RM_CHANNELS_PER_CONTROL. 0, -ENOENT when this process has
 * none of its own at work on the GPU, or -errno when the driver refuses: as where one of them has gone.
 */
int hami_channels_resume_others(unsigned int slice, const uint32_t *clients, const uint32_t *handles,
				uint32_t count);
/* Resumes them, however often the driver refuses: every 10 ms, and after a second every second. */
void hami_channels_resume(unsigned int slice);
/*
 * Sets the timeslice of every compute group now and of those made later, in microseconds; 0 leaves libcuda's.
 * 0, or -errno when the driver refuses.
 */
int hami_channels_timeslice(unsigned int slice, uint64_t microseconds);
/*
 * Sets the timeslice of the groups that copy, as there are now, in microseconds; 0: the driver's own, where it was ever
 * changed. 0, or -errno when the driver refuses; then all have its own again, as far as it lets them. -EAGAIN when all have
 * just gone: call again. For the slice's keeper alone.
 */
int hami_channels_copy_timeslice(unsigned int slice, uint64_t microseconds);
/* Returns the timeslice that a compute group gets when libcuda asks for one; 0: what libcuda asks for. */
uint64_t hami_channels_wanted_timeslice(unsigned int slice);

#endif
