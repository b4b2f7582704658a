/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps a slice's share of its GPU's time, on a thread of its own (limits/share.h): sets timeslices, measures what is
 * used, takes it from the budget, pauses.
 *
 * No lock, and none is held over an ioctl. Not async-signal-safe. A forked child has no such thread.
 */
#ifndef HAMI_KEEPER_H
#define HAMI_KEEPER_H
#include <stdbool.h>

/* Keeps the share of a slice until the driver refuses to pause; `pauses` false: never pauses. Returns its error. */
int hami_keep(unsigned int slice, bool pauses);

#endif
