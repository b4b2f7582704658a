// SPDX-License-Identifier: GPL-2.0-or-later
/* LD_PRELOAD's value: libraries between spaces and colons. */
#ifndef HAMI_SPANK_PRELOAD_H
#define HAMI_SPANK_PRELOAD_H

#include <stdbool.h>

/* old (NULL: unset) with library in front, once. Caller frees; NULL when there is no memory. */
char *preload_with(const char *old, const char *library);

/* old without library; "" when nothing is left. Caller frees; NULL when there is no memory. */
char *preload_without(const char *old, const char *library);

bool preload_has(const char *old, const char *library);

#endif
