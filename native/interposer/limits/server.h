/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The turn and the timeslice of an MPS server, as one of its clients keeps them. All clients have the same turn, and pause
 * their own channels outside of it. That stops the others, too (ADR 113): so what one of them has not resumed in time, as it
 * is stopped or waits for a processor, the others resume. The timeslice is the shortest that one of them wants.
 *
 * For the keeper's thread of the job's only slice: no lock, and none is held over an ioctl. Not async-signal-safe.
 */
#ifndef HAMI_SERVER_H
#define HAMI_SERVER_H
#include <stdbool.h>
#include <stdint.h>

/*
 * Says that this process's channels are paused until then, by hami_clock_shared(): before it pauses them, and while they
 * are. Returns whether it may: not where the others could not resume them.
 */
bool hami_server_pauses(unsigned int slice, int64_t until);
/*
 * Says that they are open, at `now` by that clock, and resumes channels of others that are late. Returns whether the others
 * want another timeslice than before.
 */
bool hami_server_opens(unsigned int slice, int64_t now);
/* Says which timeslice this client wants, us. Returns the one that the server shall have: the shortest that any wants. */
uint32_t hami_server_timeslice(unsigned int slice, uint32_t wanted);

#endif
