// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The functions of SPANK that the backends of spank/ call, for a session: a session gets what a step gets, by the same
 * code. The environment is PAM's, which the session's programs start with.
 */
#ifndef HAMI_PAM_ENVIRONMENT_H
#define HAMI_PAM_ENVIRONMENT_H

#include <security/pam_modules.h>
#include <slurm/spank.h>

struct spank_handle {
	pam_handle_t *pamh;
	char **env; /* what S_JOB_ENV last gave; it stays valid until the next one */
};

/* Frees what S_JOB_ENV gave. */
void environment_end(spank_t spank);

#endif
