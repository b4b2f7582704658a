// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The option --vgpu-torch: the variables by which PyTorch's ranks find each other (torch.distributed, env://), so that
 * a script for torchrun runs under srun without it.
 */
#ifndef HAMI_SPANK_TORCH_H
#define HAMI_SPANK_TORCH_H

#include <slurm/spank.h>

#include "context.h"

/*
 * Sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and MASTER_ADDR and MASTER_PORT unless the user has set them.
 * Called in a task's process. Says on rank 0's standard error if ranks share a GPU, which NCCL refuses. May refuse the
 * step.
 */
void torch_start_task(struct step_context *step, spank_t spank);

#endif
