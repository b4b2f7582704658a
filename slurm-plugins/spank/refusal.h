// SPDX-License-Identifier: GPL-2.0-or-later
/* The message for the user of a refused step: one line with the reason and what to do. Pure. */
#ifndef HAMI_SPANK_REFUSAL_H
#define HAMI_SPANK_REFUSAL_H

#include <stddef.h>
#include <stdint.h>

#include "decide.h"

/* Writes the line for verdict to text[size]; "" if the step is not refused. */
void refusal_write(enum step_verdict verdict, const char *run_dir, uint32_t job_id, char *text, size_t size);

#endif
