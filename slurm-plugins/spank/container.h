// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a container has to show of a limited step. A container has an /etc and a /run of its own, so preload=ldso
 * (ldso.h) ends at its edge, unless its runtime binds these into it:
 *
 *   /run/hami-hpc/self                      the same place: the records and the usage file
 *   /run/hami-hpc/self/container.preload    /etc/ld.so.preload: the interposer alone, without the host's list
 *   the interposer                          the same place
 *
 * Sources are paths in the task's mount namespace, so they are the same for all jobs and steps. This is the one list:
 * jobs/JOB/container.mounts has it for enroot's hook and `hami-hpc oci-mounts`, and two variables for Apptainer.
 * Does not use Slurm. docs/adr/072
 */
#ifndef HAMI_SPANK_CONTAINER_H
#define HAMI_SPANK_CONTAINER_H

#include <stdbool.h>

#include "options.h"

/* The variables from which Apptainer and SingularityCE take binds, besides *_BIND, which is left to users. */
extern const char *const container_variables[2];

/* Writes container.preload and container.mounts into dir, the job's directory. Returns 0 or -errno. */
int container_write(int dir, const struct options *opt);

/*
 * Returns the list in the form of container_variables, before the user's own value `old` (NULL: unset): of two binds on
 * one place Apptainer leaves out the second, with a warning. The caller frees it; NULL if memory ran out, or if the value would be
 * longer than Linux passes on.
 */
char *container_binds_with(const char *old, const struct options *opt);

/* Returns old without the list; "" if nothing is left. The caller frees it; NULL if memory ran out. */
char *container_binds_without(const char *old, const struct options *opt);

bool container_binds_has(const char *old, const struct options *opt);

#endif
