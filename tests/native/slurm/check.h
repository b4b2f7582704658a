// SPDX-License-Identifier: GPL-2.0-or-later
/* For the tests of the Slurm plugins' C: a program prints what is not so and exits 1, or exits 0. */
#ifndef HAMI_SLURM_CHECK_H
#define HAMI_SLURM_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);              \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define CHECK_TEXT(got, wanted)                                                                              \
	do {                                                                                                 \
		const char *got_ = (got);                                                                    \
		if (!got_ || strcmp(got_, (wanted)) != 0) {                                                  \
			fprintf(stderr, "%s:%d: %s is '%s', not '%s'\n", __FILE__, __LINE__, #got,           \
				got_ ? got_ : "(null)", (wanted));                                           \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#endif
