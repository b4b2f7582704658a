// SPDX-License-Identifier: GPL-2.0-or-later
/* Edits the value of LD_PRELOAD: libraries separated by spaces and colons. */
#ifndef HAMI_SPANK_PRELOAD_H
#define HAMI_SPANK_PRELOAD_H

#include <stdbool.h>

/* Returns old (NULL: unset) with library once, in front. The caller frees it; NULL if memory ran out. */
char *preload_with(const char *old, const char *library);

/* Returns old without library; "" if nothing is left. The caller frees it; NULL if memory ran out. */
char *preload_without(const char *old, const char *library);

bool preload_has(const char *old, const char *library);

#endif
