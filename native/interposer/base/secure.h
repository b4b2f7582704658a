/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that run with more rights than their user's (set-user-ID, set-group-ID, file capabilities).
 * Nothing that the user provides may be believed or opened in them, so they get no limits: every hook passes
 * its call on, and requests for device memory, channels or a context are refused.
 *
 * Thread-safe, async-signal-safe but for the log; no lock, so no fork handler.
 */
#ifndef HAMI_SECURE_H
#define HAMI_SECURE_H
#include <stdbool.h>

/* Returns whether this program is one of them. */
bool hami_is_secure(void);
/* Logs the refusal, the first time it is called. */
void hami_refuse_secure(void);

#endif
