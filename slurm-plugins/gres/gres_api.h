// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Gives Slurm's gres plugin interface the same names in all releases.
 *
 *   22.05          src/common/gres.h, List, gres_epilog_info_t, gres_p_epilog_*, gres_p_get_{job,step}_info
 *   23.02 to 24.05 src/interfaces/gres.h, list_t, gres_prep_t, gres_p_prep_*, gres_p_get_{job,step}_info
 *   24.11 to 26.05 the same, without gres_p_get_{job,step}_info
 */
#ifndef HAMI_GRES_API_H
#define HAMI_GRES_API_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"

/* Must be the first internal header: it renames Slurm's functions to the names that its daemons export. */
#include "src/common/slurm_xlator.h"

#include "src/common/bitstring.h"
#include "src/common/env.h"
#include "src/common/list.h"
#include "src/common/pack.h"
#include "src/common/xmalloc.h"

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(22, 5, 0)
#error "hami_hpc needs Slurm 22.05 or later"
#elif SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0)
#include "src/common/gres.h"
typedef struct xlist hami_list;
typedef gres_epilog_info_t hami_prep_info;
#define hami_build_env gres_p_epilog_build_env
#define hami_set_env gres_p_epilog_set_env
#else
#include "src/interfaces/gres.h"
typedef list_t hami_list;
typedef gres_prep_t hami_prep_info;
#define hami_build_env gres_p_prep_build_env
#define hami_set_env gres_p_prep_set_env
#endif

#endif
