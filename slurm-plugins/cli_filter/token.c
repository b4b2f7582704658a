// SPDX-License-Identifier: GPL-2.0-or-later
#include "token.h"

#include <ctype.h>
#include <string.h>

#include "hami_contract.h"

/* Of the pieces between separators: no key, value or type that is offered has anything else. */
static bool is_plain(char c)
{
	return isalnum((unsigned char)c) || strchr("_.-%", c);
}

/*
 * Appends one piece, KEY=VALUE as KEY~VALUE, or, if it is the first, a type or count. Returns false where it is neither.
 */
static bool append(char *token, size_t *used, const char *piece, size_t length, bool is_first)
{
	const char *equals = memchr(piece, '=', length);

	if (*used + length + 1 >= TOKEN_MAX || !length || (!equals && !is_first) || equals == piece ||
	    equals == piece + length - 1)
		return false;
	if (!is_first)
		token[(*used)++] = ';';
	for (size_t i = 0; i < length; i++) {
		if (piece + i != equals && !is_plain(piece[i]))
			return false;
		token[(*used)++] = piece + i == equals ? '~' : piece[i];
	}
	token[*used] = '\0';
	return true;
}

static const char *without_prefix(const char *item)
{
	return strncmp(item, "gres:", 5) == 0 || strncmp(item, "gres/", 5) == 0 ? item + 5 : item;
}

bool token_of(const char *value, char token[TOKEN_MAX])
{
	static const char name[] = HAMI_GRES_CLASS ":";
	size_t used = sizeof(name) - 1;
	const char *piece = without_prefix(value);
	bool is_first = true;

	if (strncmp(piece, name, used) != 0)
		return false;
	memcpy(token, name, sizeof(name));
	for (piece += used;; is_first = false) {
		size_t length = strcspn(piece, ":,");

		if (!append(token, &used, piece, length, is_first))
			return false;
		piece += length;
		if (*piece == '\0')
			return strchr(token, '~') != NULL;
		piece = *piece == ',' ? without_prefix(piece + 1) : piece + 1;
	}
}
