/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uuid.h"

#include <string.h>

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hami_uuid_read(const char *text, unsigned char bytes[HAMI_UUID_BYTES])
{
	const char *p = strchr(text, '-');
	unsigned int n = 0;
	memset(bytes, 0, HAMI_UUID_BYTES);
	for (p = p ? p + 1 : text; *p; p++) {
		int value = digit(*p);
		if (*p == '-')
			continue;
		if (value < 0 || n == 2 * HAMI_UUID_BYTES)
			return false;
		bytes[n / 2] = (unsigned char)(bytes[n / 2] << 4 | value);
		n++;
	}
	return n == 2 * HAMI_UUID_BYTES;
}
