/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signal handlers, signal masks, alternate stacks, umask, working directory and environment are the
 * application's: using the GPU under a limit changes none of them, and the descriptors it opens are not
 * inherited by exec.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"

extern char **environ;

struct state {
	struct sigaction actions[65];
	sigset_t mask;
	stack_t stack;
	mode_t umask;
	char directory[512], environment[65536];
};

static void handler(int signal)
{
	(void)signal;
}

static void look(struct state *s)
{
	memset(s, 0, sizeof *s);
	for (int i = 1; i <= 64; i++)
		sigaction(i, NULL, &s->actions[i]);
	CHECK(sigprocmask(SIG_BLOCK, NULL, &s->mask) == 0);
	CHECK(sigaltstack(NULL, &s->stack) == 0);
	s->umask = umask(027);
	umask(s->umask);
	CHECK(getcwd(s->directory, sizeof s->directory) != NULL);
	size_t used = 0;
	for (char **e = environ; *e; e++) {
		size_t n = strlen(*e) + 1;
		CHECK(used + n <= sizeof s->environment);
		memcpy(s->environment + used, *e, n);
		used += n;
	}
}

static unsigned int inheritable(void)
{
	unsigned int count = 0;
	DIR *fds = opendir("/proc/self/fd");
	CHECK(fds != NULL);
	for (struct dirent *e; (e = readdir(fds));)
		if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(fds) &&
		    !(fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC))
			count++;
	closedir(fds);
	return count;
}

int main(void)
{
	static struct state before, after;
	umask(013);
	signal(SIGSEGV, handler);
	signal(SIGUSR1, handler);
	signal(SIGPIPE, SIG_IGN);
	look(&before);
	unsigned int open_before = inheritable();
	CUdeviceptr a;
	start();
	OK(cuMemAlloc(&a, 64 * MIB));
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, limit_bytes()));
	OK(cuCtxSynchronize());
	look(&after);
	for (int i = 1; i <= 64; i++) {
		CHECK(before.actions[i].sa_handler == after.actions[i].sa_handler);
		CHECK(before.actions[i].sa_flags == after.actions[i].sa_flags);
	}
	CHECK(memcmp(&before.mask, &after.mask, sizeof before.mask) == 0);
	CHECK(before.stack.ss_sp == after.stack.ss_sp && before.stack.ss_size == after.stack.ss_size);
	CHECK(before.umask == after.umask);
	CHECK(strcmp(before.directory, after.directory) == 0);
	if (!getenv("HAMI_SIM"))
		return 0; /* the rest may be the driver's own doing */
	CHECK(memcmp(before.environment, after.environment, sizeof before.environment) == 0);
	CHECK(inheritable() == open_before);
	return 0;
}
