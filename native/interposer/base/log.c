/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hami_contract.h"

/*
 * Writes to the standard error. A reader who has gone must not end the program: the signal of it is taken back, unless one
 * was waiting before.
 */
static void write_line(const char *line, size_t length)
{
	sigset_t pipe, pending, before;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	if (write(STDERR_FILENO, line, length) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe, NULL, &(struct timespec){0});
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

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
		if (n > 0)
			write_line(line, length);
	}
	errno = saved;
}
