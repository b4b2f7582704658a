// SPDX-License-Identifier: GPL-2.0-or-later
/* Tasks on instances of the node's static MIG layout. */
#ifndef HAMI_SPANK_STANDING_TASK_H
#define HAMI_SPANK_STANDING_TASK_H

#include <slurm/spank.h>

#include "context.h"

/*
 * Sets the task's devices to its instances of the node's static MIG layout, if Slurm gave the task all of its step's
 * GPUs, and all are such instances. CUDA takes them by UUID, and Slurm without NVML knows numbers alone.
 */
void standing_start_task(struct step_context *step, spank_t spank);

#endif
