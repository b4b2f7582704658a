/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAMI_HOOKS_CAPTURE_H
#define HAMI_HOOKS_CAPTURE_H
#include <stdint.h>

/* A context is gone (hami_known_owner()), and with it the captures of its streams. */
void hami_capture_end_context(uint64_t owner);

/* In a forked child: the parent's captures are none of its own. */
void hami_capture_forked(void);

#endif
