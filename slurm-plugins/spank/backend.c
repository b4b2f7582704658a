// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * To add a backend, write a file beside share.c and add a row here. hami_hpc/isolation has the part of each
 * backend that runs in prolog and epilog.
 */
#include "backend.h"

#include <stddef.h>

#include "mig.h"
#include "mps.h"
#include "share.h"

static const struct backend *const backends[] = {
	[HAMI_MODE_SHARE] = &share_backend,
	[HAMI_MODE_MIG] = &mig_backend,
	[HAMI_MODE_MPS] = &mps_backend,
};

enum { BACKENDS = sizeof(backends) / sizeof(backends[0]) };

const struct backend *backend_of(uint32_t mode)
{
	return mode < BACKENDS ? backends[mode] : NULL;
}

void backend_drop_inherited(const struct step_context *step, spank_t spank, const struct backend *own)
{
	for (uint32_t mode = 0; mode < BACKENDS; mode++) {
		char **env = NULL;

		if (backends[mode] && backends[mode] != own &&
		    spank_get_item(spank, S_JOB_ENV, &env) == ESPANK_SUCCESS)
			backends[mode]->drop_inherited(step, spank, env);
	}
}
