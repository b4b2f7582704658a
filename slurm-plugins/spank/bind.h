// SPDX-License-Identifier: GPL-2.0-or-later
/* The option --vgpu-bind of srun, sbatch and salloc: which of its step's GPUs a task sees. Does not use Slurm. */
#ifndef HAMI_SPANK_BIND_H
#define HAMI_SPANK_BIND_H

#include <stddef.h>

enum bind_mode {
	BIND_NONE,  /* default: each task sees all GPUs of its step */
	BIND_SINGLE /* a task sees one of them, by its number on the node */
};

/* Returns an enum bind_mode, or -EINVAL with one line in error[size] that says what to write instead. */
int bind_parse(const char *text, char *error, size_t size);

/*
 * Writes to one[size] the GPU that task `local_id` of the node has of `devices`, a list as in CUDA_VISIBLE_DEVICES:
 * that number, modulo the count of GPUs. Returns 0, or -EINVAL if there is no list or it does not fit.
 */
int bind_choose(const char *devices, unsigned int local_id, char *one, size_t size);

#endif
