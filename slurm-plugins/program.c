// SPDX-License-Identifier: GPL-2.0-or-later
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Returns whether only root can have written the program. */
static int check_program(const char *path, char *line, size_t size)
{
	struct stat st;

	if (stat(path, &st) < 0) {
		snprintf(line, size, "%s is not there (%s). Administrator: install hami_hpc on this node",
			 path, strerror(errno));
		return -1;
	}
	if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH))) {
		snprintf(
			line, size,
			"%s must be a file of root that only root can write. Administrator: install hami_hpc on "
			"this node again",
			path);
		return -1;
	}
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/*
 * Closes all descriptors but the first three. Linux before 5.9 (RHEL 8) has no close_range: there by /proc. Only
 * async-signal-safe calls. Returns whether it could.
 */
static bool close_others(void)
{
	struct entry { /* of getdents64 */
		uint64_t inode;
		int64_t next;
		uint16_t length;
		uint8_t kind;
		char name[];
	};
	_Alignas(struct entry) char entries[2048];
	long size;
	int folder;

#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0)
		return true;
#endif
	folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return false;
	while ((size = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0) {
		const struct entry *entry;

		for (long at = 0; at < size; at += entry->length) {
			int fd = 0;

			entry = (const struct entry *)(entries + at);
			for (const char *digit = entry->name; *digit >= '0' && *digit <= '9'; digit++)
				fd = 10 * fd + *digit - '0';
			if (fd > 2 && fd != folder)
				close(fd);
		}
	}
	close(folder);
	return size == 0;
}

/* Becomes the program, with an environment in which nothing is the user's. Only async-signal-safe calls. */
__attribute__((noreturn)) static void become(char *const argv[], char *const env[], int input, int output)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	int null = open("/dev/null", O_RDWR);
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		sigaction(number, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setpgid(0, 0);
	if (null < 0 || dup2(input < 0 ? null : input, 0) < 0 || dup2(output < 0 ? null : output, 1) < 0 ||
	    dup2(null, 2) < 0 || chdir("/") < 0 || !close_others())
		_exit(126);
	umask(022);
	execve(argv[0], argv, env);
	_exit(127);
}

/* Reads the program's first line into line[size] until it closes its output. Returns false after so many seconds. */
static bool read_line(int input, int seconds, char *line, size_t size)
{
	const int64_t end = now_ms() + seconds * 1000;
	char rest[512];
	size_t length = 0;

	for (;;) {
		struct pollfd waiting = {.fd = input, .events = POLLIN};
		int64_t left = end - now_ms();
		ssize_t n;

		line[length] = '\0';
		if (left <= 0)
			return false;
		if (poll(&waiting, 1, (int)left) < 0 && errno != EINTR)
			return true;
		if (!waiting.revents)
			continue;
		n = length + 1 < size ? read(input, line + length, size - 1 - length)
				      : read(input, rest, sizeof(rest));
		if (n == 0 || (n < 0 && errno != EINTR))
			break;
		if (n > 0 && length + 1 < size)
			length += (size_t)n;
	}
	line[strcspn(line, "\n")] = '\0';
	return true;
}

static int wait_for(pid_t child)
{
	int status = 0;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

/* Writes NAME=VALUE to text[size], the value of which is that of slurmd's own environment. */
static char *inherited(const char *name, char *text, size_t size)
{
	const char *value = getenv(name);

	snprintf(text, size, "%s=%s", name, value ? value : "");
	return text;
}

/* Starts the program, if only root can have written it. Returns its process, or -1 with what is wrong in line[size]. */
static pid_t start(const char *const argv[], int input, int output, char *line, size_t size)
{
	char conf[PATH_MAX + 16], node[320];
	char *env[4] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
			inherited("SLURMD_NODENAME", node, sizeof(node))};
	pid_t child;

	if (getenv("SLURM_CONF"))
		env[2] = inherited("SLURM_CONF", conf, sizeof(conf));
	if (check_program(argv[0], line, size) < 0)
		return -1;
	child = fork();
	if (child == 0)
		become((char *const *)argv, env, input, output);
	if (child < 0)
		snprintf(line, size, "%s cannot be started (%s)", argv[0], strerror(errno));
	else
		setpgid(child, child);
	return child;
}

int program_run(const char *const argv[], int seconds, char *line, size_t size)
{
	bool answered;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		snprintf(line, size, "%s cannot be started (%s)", argv[0], strerror(errno));
		return -1;
	}
	child = start(argv, -1, ends[1], line, size);
	close(ends[1]);
	if (child < 0) {
		close(ends[0]);
		return -1;
	}
	answered = read_line(ends[0], seconds, line, size);
	if (!answered)
		kill(-child, SIGKILL);
	close(ends[0]);
	status = wait_for(child);
	if (answered && status == 0)
		return 0;
	if (!answered)
		snprintf(line, size,
			 "%s did not end within %d s. Try again. Administrator: see slurmd's log and syslog",
			 argv[0], seconds);
	else if (!*line)
		snprintf(line, size, "%s ended with status %d. Administrator: see syslog on this node",
			 argv[0], status);
	return -1;
}

pid_t program_start(const char *const argv[], int *input, char *line, size_t size)
{
	int ends[2];
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		snprintf(line, size, "%s cannot be started (%s)", argv[0], strerror(errno));
		return -1;
	}
	child = start(argv, ends[0], -1, line, size);
	close(ends[0]);
	if (child < 0)
		close(ends[1]);
	else
		*input = ends[1];
	return child;
}
