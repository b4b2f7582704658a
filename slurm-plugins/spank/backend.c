// SPDX-License-Identifier: GPL-2.0-or-later
/* To add a backend: a file beside share.c and a row here. The node's side of each is in hami_hpc/isolation. */
#include "backend.h"

#include <stddef.h>

#include "share.h"

static const struct backend *const backends[] = {
	[HAMI_MODE_SHARE] = &share_backend,
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
