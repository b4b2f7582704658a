// SPDX-License-Identifier: GPL-2.0-or-later
/* The instances of the node's static MIG layout: CUDA takes them by UUID, and Slurm without NVML knows numbers alone. */
#ifndef HAMI_SPANK_STANDING_H
#define HAMI_SPANK_STANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { STANDING_MAP_SIZE = 8192 };

/*
 * Writes the UUIDs of gpus ("1,3", Slurm's numbers of devices) to uuids, by map, which has a line "NUMBER UUID" for
 * each instance. Returns false if one of them is no instance, there is none, or uuids has no room.
 */
bool standing_uuids(const char *map, const char *gpus, char *uuids, size_t size);

/*
 * Reads the map that owner (root, but for tests) wrote in the run directory. Returns false if there is none, or another
 * could have written it.
 */
bool standing_read(const char *run_dir, uid_t owner, char map[STANDING_MAP_SIZE]);

#endif
