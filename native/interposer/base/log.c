/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hami_contract.h"

static struct {
	_Atomic int level; /* -1 until read */
} logging = {.level = -1};

void hami_log(int level, const char *format, ...)
{
	int saved = errno;
	if (logging.level < 0) {
		const char *text = secure_getenv(HAMI_ENV_LOG);
		logging.level = text ? atoi(text) : 0;
	}
	if (level <= logging.level) {
		char line[512] = "hami_hpc: ";
		size_t prefix = strlen(line);
		va_list arguments;
		va_start(arguments, format);
		int n = vsnprintf(line + prefix, sizeof line - prefix, format, arguments);
		va_end(arguments);
		size_t length = strlen(line);
		line[length - 1] = '\n'; /* also of a line that was too long */
		if (n > 0 && write(STDERR_FILENO, line, length) < 0)
			errno = 0; /* a closed stderr must not fail the application */
	}
	errno = saved;
}
