// SPDX-License-Identifier: GPL-2.0-or-later
/* mode=share: each task runs with the interposer, which enforces the limits of the step's record. */
#ifndef HAMI_SPANK_SHARE_H
#define HAMI_SPANK_SHARE_H

#include "backend.h"

extern const struct backend share_backend;

#endif
