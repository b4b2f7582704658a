/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A plain vgpu request as the one token that Slurm's clients accept: "vgpu:mem~8G;cores~50" for "vgpu:mem=8G,cores=50".
 *
 * No request is parsed here: hami_hpc_request.lua in slurmctld alone knows what one means, and reads both forms alike.
 */
#ifndef HAMI_CLI_FILTER_TOKEN_H
#define HAMI_CLI_FILTER_TOKEN_H
#include <stdbool.h>
#include <stddef.h>

enum { TOKEN_MAX = 256 };

/*
 * Writes the token for the value of --gres, as users write it or with "gres:" or "gres/" before each item, to `token`.
 * Returns false, with `token` undefined, for everything that is not plainly one vgpu with KEY=VALUE items and nothing else.
 */
bool token_of(const char *value, char token[TOKEN_MAX]);

#endif
