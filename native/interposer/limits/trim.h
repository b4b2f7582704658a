/* SPDX-License-Identifier: Apache-2.0 */
/* Gives back what the pools of a context's device keep without need: nobody can copy what is not allocated. */
#ifndef HAMI_TRIM_H
#define HAMI_TRIM_H
#include "driver/resolve.h"

void hami_trim_pools(const struct real_cuda *real, CUcontext context);

#endif
