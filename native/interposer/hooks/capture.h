/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAMI_HOOKS_CAPTURE_H
#define HAMI_HOOKS_CAPTURE_H

/* In a forked child: the parent's captures are none of its own. */
void hami_capture_forked(void);

#endif
