// SPDX-License-Identifier: GPL-2.0-or-later
#include "preload.h"

#include <stdlib.h>
#include <string.h>

static const char separators[] = " :";

/* Returns the next entry at or after *at and its length in *length; NULL at the end. Moves *at behind it. */
static const char *next_entry(const char **at, size_t *length)
{
	const char *entry = *at + strspn(*at, separators);

	*length = strcspn(entry, separators);
	*at = entry + *length;
	return *length > 0 ? entry : NULL;
}

static bool is_library(const char *entry, size_t length, const char *library)
{
	return length == strlen(library) && memcmp(entry, library, length) == 0;
}

static char *append(char *end, const char *entry, size_t length)
{
	memcpy(end, entry, length);
	end[length] = '\0';
	return end + length;
}

/* Returns first (which may be "") and then old's entries other than library, separated by colons. */
static char *rebuild(const char *first, const char *old, const char *library)
{
	char *value = malloc(strlen(first) + 1 + strlen(old) + 1);
	const char *entry;
	size_t length;
	char *end;

	if (!value)
		return NULL;
	end = append(value, first, strlen(first));
	while ((entry = next_entry(&old, &length))) {
		if (is_library(entry, length, library))
			continue;
		if (end > value)
			end = append(end, ":", 1);
		end = append(end, entry, length);
	}
	return value;
}

char *preload_with(const char *old, const char *library)
{
	return rebuild(library, old ? old : "", library);
}

char *preload_without(const char *old, const char *library)
{
	return rebuild("", old ? old : "", library);
}

bool preload_has(const char *old, const char *library)
{
	const char *entry;
	size_t length;

	while (old && (entry = next_entry(&old, &length))) {
		if (is_library(entry, length, library))
			return true;
	}
	return false;
}
