/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into prolog or epilog by test_crash.py: kills the process with SIGKILL just before its KILL_AT-th
 * call (from 1) that changes a file system. KILL_AT=0 kills nothing and writes the number of such calls to
 * the file KILL_COUNT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int calls;

static void tick(void)
{
	const char *at = getenv("KILL_AT");

	calls++;
	if (at && atoi(at) == calls)
		raise(SIGKILL);
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("KILL_COUNT");
	FILE *file = path ? fopen(path, "w") : NULL;

	if (file) {
		fprintf(file, "%d\n", calls);
		fclose(file);
	}
}

#define WRAP(result, name, parameters, arguments)                                                            \
	result name parameters                                                                               \
	{                                                                                                    \
		static result(*real) parameters;                                                             \
		if (!real)                                                                                   \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                           \
		tick();                                                                                      \
		return real arguments;                                                                       \
	}

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size))
WRAP(int, posix_fallocate, (int fd, off_t at, off_t size), (fd, at, size))
WRAP(int, posix_fallocate64, (int fd, off64_t at, off64_t size), (fd, at, size))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, rmdir, (const char *path), (path))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, link, (const char *from, const char *to), (from, to))
WRAP(int, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]),
     (pid, path, actions, attributes, argv, envp))
WRAP(int, mount,
     (const char *from, const char *at, const char *type, unsigned long flags, const void *options),
     (from, at, type, flags, options))
WRAP(int, umount2, (const char *at, int flags), (at, flags))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode))
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP(int, fchown, (int fd, uid_t uid, gid_t gid), (fd, uid, gid))

#define WRAP_OPEN(name)                                                                                      \
	int name(const char *path, int flags, ...)                                                           \
	{                                                                                                    \
		static int (*real)(const char *, int, ...);                                                  \
		va_list list;                                                                                \
		mode_t mode;                                                                                 \
		if (!real)                                                                                   \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                           \
		va_start(list, flags);                                                                       \
		mode = va_arg(list, mode_t);                                                                 \
		va_end(list);                                                                                \
		if (flags & O_CREAT)                                                                         \
			tick();                                                                              \
		return real(path, flags, mode);                                                              \
	}

WRAP_OPEN(open)
WRAP_OPEN(open64)
