// SPDX-License-Identifier: GPL-2.0-or-later
/* The ranks of a step, and the GPUs that they see. Does not use Slurm. */
#ifndef HAMI_SPANK_RANKS_H
#define HAMI_SPANK_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Returns the port on which rank 0 listens: the same for all tasks of a step, below the ports that Linux gives to
 * programs (32768), and another one for steps and jobs that are likely to run at the same time.
 */
unsigned int ranks_port(uint32_t job_id, uint32_t step_id);

/* Returns whether several of the node's tasks would use one GPU of `devices`, as CUDA_VISIBLE_DEVICES lists them. */
bool ranks_share_gpus(const char *devices, uint32_t local_world_size);

#endif
