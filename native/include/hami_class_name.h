/* SPDX-License-Identifier: Apache-2.0 */
/* The form of the name of a class of service (contract.toml, [classes]). */
#ifndef HAMI_CLASS_NAME_H
#define HAMI_CLASS_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "hami_contract.h"

/* With its final NUL. */
enum { HAMI_CLASS_NAME_SIZE = HAMI_CLASS_NAME_MAX + 1 };

/* Returns whether the HAMI_CLASS_NAME_SIZE bytes at name, which may be any, hold such a name and its NUL. */
static inline bool hami_is_class_name(const char *name)
{
	size_t i;

	for (i = 0; i < HAMI_CLASS_NAME_MAX && name[i]; i++) {
		const char c = name[i];

		if (!(c >= 'a' && c <= 'z') && (i == 0 || (c != '_' && !(c >= '0' && c <= '9'))))
			return false;
	}
	return i > 0 && name[i] == '\0';
}

#endif
