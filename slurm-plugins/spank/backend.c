// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * To add a backend, write a file beside share.c and add a row here. hami_hpc/isolation has the part of each
 * backend that runs in prolog and epilog.
 */
#include "backend.h"

#include <stddef.h>

#include "mig.h"
#include "share.h"

static const struct backend *const backends[] = {
	[HAMI_MODE_SHARE] = &share_backend,
	[HAMI_MODE_MIG] = &mig_backend,
};

enum { BACKENDS = sizeof(backends) / sizeof(backends[0]) };

const struct backend *backend_of(uint32_t mode)
{
	return mode < BACKENDS ? backends[mode] : NULL;
}

void backend_drop_inherited(const struct step_context *step, spank_t spank, char **env)
{
	for (uint32_t mode = 0; mode < BACKENDS; mode++) {
		if (backends[mode])
			backends[mode]->drop_inherited(step, spank, env);
	}
}
