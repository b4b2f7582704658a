// SPDX-License-Identifier: GPL-2.0-or-later
/* Limits the session that this process opens as a step of its job is limited. */
#ifndef HAMI_PAM_SESSION_H
#define HAMI_PAM_SESSION_H

#include <stdint.h>

#include "context.h"
#include "environment.h"

/*
 * Gives the process, and what it starts, the slice of step->job_id if that job has one on this node and is uid's:
 * mounts, and variables in spank's environment. step->options and step->job_id are set. Called as root. On failure
 * step->refusal says why the session must not begin; else it is "".
 */
void session_limit(struct step_context *step, spank_t spank, uint32_t uid);

#endif
