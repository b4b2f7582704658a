/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of the time of each slice's GPU. One thread of a process for each slice that it uses, its keeper
 * (limits/keeper.h), started when the first compute channel on that GPU is scheduled, and only when there are limits. It
 *
 *	sets timeslices, so that the GPU's own scheduler gives everybody their share (arbitration/terms.h);
 *	measures what the process uses (limits/meter.h) and takes it from the job's budget (region/budget.h), until
 *	the process exits (limits/ending.h);
 *	pauses the process's channels while that budget is used up, and out of the job's turn.
 *
 * Where the driver refuses to pause, and where no thread can be had, a cap is kept by the gate (limits/gate.h)
 * instead; what it does not resume is tried again until it does. Where it refuses
 * timeslices, the GPU's own turns stay. Only the gate is on the launch path. The thread holds no lock over an
 * ioctl. Thread-safe, not async-signal-safe. A forked child has no such
 * thread until it schedules a channel.
 */
#ifndef HAMI_SHARE_H
#define HAMI_SHARE_H

/* Starts the slice's keeper, if it does not run and there are limits: a compute group or channel was scheduled. */
void hami_share_begin(unsigned int slice);

/* In a forked child. */
void hami_share_forked(void);

#endif
