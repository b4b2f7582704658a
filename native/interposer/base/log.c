/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hami_contract.h"

#define PATIENCE_MS 1000 /* for a reader of the standard error who is slow */

static struct {
	_Atomic bool begun;
	int level;
	bool has_error; /* the standard error was open at the start, and which file it was */
	struct stat error;
	_Atomic bool stuck; /* its reader did not read the last line */
} logging;

/* At the start: the program may change its environment and its descriptors later. */
__attribute__((constructor)) static void begin(void)
{
	if (logging.begun)
		return;
	const char *text = secure_getenv(HAMI_ENV_LOG);
	const long level = text ? strtol(text, NULL, 10) : 0;
	logging.level = level < 0 ? 0 : level > 3 ? 3 : (int)level;
	logging.has_error = !fstat(STDERR_FILENO, &logging.error);
	logging.begun = true;
}

/*
 * Returns whether the descriptor is what it was at the start, or a terminal, or can only be written to. A socket or a data
 * file that the program opened in its place is not for lines of a log.
 */
static bool is_error_output(void)
{
	struct stat now;
	const int flags = fcntl(STDERR_FILENO, F_GETFL);
	if (flags < 0 || fstat(STDERR_FILENO, &now))
		return false;
	const bool same =
		logging.has_error && logging.error.st_dev == now.st_dev && logging.error.st_ino == now.st_ino;
	return same || S_ISCHR(now.st_mode) || (flags & O_ACCMODE) == O_WRONLY;
}

/* Returns whether a line can be written at once. After a line that nobody read none is waited for. */
static bool is_read(void)
{
	struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
	logging.stuck = poll(&output, 1, logging.stuck ? 0 : PATIENCE_MS) != 1;
	return !logging.stuck;
}

/*
 * Writes to the standard error. It must neither hold nor end the program: a line that nobody reads is lost. No signal comes
 * meanwhile, of a reader who has gone (it is taken back, unless one was waiting before) or a terminal of others; nor is the
 * thread cancelled.
 */
static void write_line(const char *line, size_t length)
{
	sigset_t all, pipe, pending, before;
	int state;
	sigfillset(&all);
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (is_error_output() && is_read() && write(STDERR_FILENO, line, length) < 0 && errno == EPIPE &&
	    !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe, NULL, &(struct timespec){0});
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_setcancelstate(state, NULL);
}

void hami_log(int level, const char *format, ...)
{
	int saved = errno;
	begin();
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
