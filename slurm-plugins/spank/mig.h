// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mode=mig: the step's tasks see the job's MIG instance, which the hardware limits. The interposer limits a step that has
 * less than its job to its part of the instance (docs/adr/068).
 */
#ifndef HAMI_SPANK_MIG_H
#define HAMI_SPANK_MIG_H

#include "backend.h"

extern const struct backend mig_backend;

#endif
