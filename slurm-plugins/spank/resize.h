// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The option --vgpu-resize of srun: gives the job that the step is of another size, by root's program `resize`, which
 * this slurmstepd starts (docs/adr/076). Slurm has checked that the step's user is the job's.
 */
#ifndef HAMI_SPANK_RESIZE_H
#define HAMI_SPANK_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

#ifndef RESIZE_SECONDS /* the tests define it */
#define RESIZE_SECONDS 60
#endif
enum { RESIZE_SIZE_MAX = 128 };

/*
 * Returns 0 for a text that can be a size, dry-run,mem=16G,cores=60; else -EINVAL with one line in error[size] that says
 * what to write. What it means is left to the program.
 */
int resize_check(const char *text, char *error, size_t size);

/*
 * Runs the program for the job and waits for it, RESIZE_SECONDS at most. Returns 0 with its line for the user in
 * line[size], or -1 with the reason why nothing is changed. Called as root, before the step has a process of its own.
 */
int resize_run(const struct options *opt, uint32_t job_id, uint32_t uid, const char *text, char *line,
	       size_t size);

/* Writes the program's line to the task's standard output, after this node's name. */
void resize_tell(const char *line);

#endif
