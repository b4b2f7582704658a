// SPDX-License-Identifier: GPL-2.0-or-later
/* What the user of a refused step reads: one line, why and what to do. Pure. */
#ifndef HAMI_SPANK_REFUSAL_H
#define HAMI_SPANK_REFUSAL_H

#include <stddef.h>
#include <stdint.h>

#include "decide.h"

/* Writes the line for verdict to text[size]; "" where the step is not refused. */
void refusal_write(enum step_verdict verdict, const char *run_dir, uint32_t job_id, char *text, size_t size);

#endif
