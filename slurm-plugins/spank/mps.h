// SPDX-License-Identifier: GPL-2.0-or-later
/* mode=mps: the step's programs are clients of the MPS daemon that the prolog made sure of (docs/adr/052). */
#ifndef HAMI_SPANK_MPS_H
#define HAMI_SPANK_MPS_H

#include "backend.h"

extern const struct backend mps_backend;

#endif
