// SPDX-License-Identifier: GPL-2.0-or-later
/* resize.h: which texts are passed on, and how root's program is started, waited for and read. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "resize.h"

static char folder[] = "/tmp/hami-resize-XXXXXX", path[128], line[1024];
static struct options options = {.stages = folder};

static void texts_that_can_be_sizes_are_passed_on(void)
{
	static const char *const passed[] = {"mem=16G", "cores=60", "mem=50%,cores=60", "dry-run,mem=1G",
					     "x"};
	static const char *const refused[] = {"",       "mem=1G;id", "mem=$(id)", "mem=1G\n",
					      "mem 1G", "mem=1G/",   "\x80"};
	char error[512], longest[RESIZE_SIZE_MAX + 2];

	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		CHECK(resize_check(passed[i], error, sizeof(error)) == 0);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		CHECK(resize_check(refused[i], error, sizeof(error)) == -EINVAL);
		CHECK(strstr(error, "Example: srun --jobid=JOB"));
	}
	CHECK(resize_check(NULL, error, sizeof(error)) == -EINVAL);
	memset(longest, 'a', sizeof(longest));
	longest[RESIZE_SIZE_MAX] = '\0';
	CHECK(resize_check(longest, error, sizeof(error)) == 0);
	longest[RESIZE_SIZE_MAX] = 'a';
	longest[RESIZE_SIZE_MAX + 1] = '\0';
	CHECK(resize_check(longest, error, sizeof(error)) == -EINVAL);
}

static void write_program(const char *body)
{
	FILE *file = fopen(path, "w");

	CHECK(file && fprintf(file, "#!/bin/sh\n%s\n", body) > 0 && fclose(file) == 0);
	CHECK(chmod(path, 0755) == 0);
}

static int run(const char *body)
{
	write_program(body);
	return resize_run(&options, 7, 1000, "mem=16G", line, sizeof(line));
}

static void the_program_gets_its_arguments_and_nothing_of_the_users(void)
{
	CHECK(setenv("LD_PRELOAD_X", "user", 1) == 0 && setenv("SLURMD_NODENAME", "n1", 1) == 0);
	CHECK(unsetenv("SLURM_CONF") == 0);
	CHECK(run("echo \"$*\"") == 0);
	CHECK_TEXT(line, "--job 7 --uid 1000 --size mem=16G");
	options.config = "/etc/other.toml";
	CHECK(run("echo \"$*\"") == 0);
	CHECK_TEXT(line, "--job 7 --uid 1000 --size mem=16G --config /etc/other.toml");
	CHECK(run("unset PWD SHLVL _ OLDPWD; env | sort | tr '\\n' ' '") == 0);
	CHECK_TEXT(line, "PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURMD_NODENAME=n1 ");
	CHECK(setenv("SLURM_CONF", "/etc/slurm.conf", 1) == 0);
	CHECK(run("echo $SLURM_CONF; pwd") == 0);
	CHECK_TEXT(line, "/etc/slurm.conf");
	CHECK(run("pwd; umask") == 0);
	CHECK_TEXT(line, "/");
	CHECK(run("readlink /proc/self/fd/0; cat") == 0);
	CHECK_TEXT(line, "/dev/null");
	CHECK(run("ls /proc/self/fd | wc -l") == 0); /* 0, 1, 2, and ls's own of the directory */
	CHECK_TEXT(line, "4");
}

/* Linux before 5.9 has no close_range. */
static void without_close_range_no_descriptor_is_left_open_either(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
		CHECK(syscall(SYS_close_range, 3u, ~0u, 0u) < 0 && errno == ENOSYS);
		for (int fd = 10; fd < 1000; fd++) /* more than one answer of the kernel has */
			CHECK(dup2(0, fd) == fd);
		CHECK(run("ls /proc/self/fd | wc -l") == 0);
		CHECK_TEXT(line, "4");
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* slurmstepd blocks signals and ignores some; the program and what it starts must not inherit that. */
static void the_program_has_no_signal_blocked_or_ignored(void)
{
	sigset_t all, before;

	sigfillset(&all);
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR && sigprocmask(SIG_SETMASK, &all, &before) == 0);
	/* All but 32 and 33, which are glibc's own. */
	CHECK(run("for set in SigBlk SigIgn; do echo $((0x$(grep $set /proc/$$/status | cut -f 2) & ~0x180000000)); done |"
		  " tr '\\n' ' '") == 0);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && signal(SIGPIPE, SIG_DFL) != SIG_ERR);
	CHECK_TEXT(line, "0 0 ");
}

static void what_it_says_and_how_it_ends_is_told(void)
{
	CHECK(run("echo first; echo second") == 0);
	CHECK_TEXT(line, "first");
	CHECK(run("exit 0") == 0);
	CHECK_TEXT(line, "");
	CHECK(run("echo no; exit 1") == -1);
	CHECK_TEXT(line, "no");
	CHECK(run("exit 3") == -1 && strstr(line, "ended with status 3"));
	CHECK(run("kill -9 $$") == -1 && strstr(line, "ended with status"));
	CHECK(run("head -c 3000000 /dev/zero | tr '\\0' a") == 0); /* more than a pipe or the line holds */
	CHECK(strlen(line) == sizeof(line) - 1);
}

static void a_program_that_does_not_end_is_killed_with_all_that_it_started(void)
{
	time_t start = time(NULL);
	int status;

	CHECK(run("sleep 300 & echo $! >\"$0.pid\"; echo begun; wait") == -1);
	CHECK(time(NULL) - start <= RESIZE_SECONDS + 3);
	CHECK(strstr(line, "did not end within 2 s"));
	CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
	CHECK(system("p=$(cat /tmp/hami-resize-*/resize.pid); sleep 0.2; ! grep -q sleep /proc/$p/comm 2>/dev/null || "
		     "grep -q 'State:.Z' /proc/$p/status") == 0);
}

static void only_roots_program_is_run(void)
{
	write_program("echo run");
	CHECK(chmod(path, 0775) == 0);
	CHECK(resize_run(&options, 7, 1000, "mem=1G", line, sizeof(line)) == -1);
	CHECK(strstr(line, "only root can write"));
	CHECK(chmod(path, 0755) == 0 && chown(path, 65534, 65534) == 0);
	CHECK(resize_run(&options, 7, 1000, "mem=1G", line, sizeof(line)) == -1);
	CHECK(strstr(line, "only root can write"));
	CHECK(unlink(path) == 0 && mkdir(path, 0755) == 0);
	CHECK(resize_run(&options, 7, 1000, "mem=1G", line, sizeof(line)) == -1);
	CHECK(rmdir(path) == 0);
	CHECK(resize_run(&options, 7, 1000, "mem=1G", line, sizeof(line)) == -1);
	CHECK(strstr(line, "is not there (No such file or directory). Administrator: install"));
}

int main(void)
{
	char command[256];

	texts_that_can_be_sizes_are_passed_on();
	CHECK(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/resize", folder);
	if (getuid() == 0) { /* the program must be root's */
		the_program_gets_its_arguments_and_nothing_of_the_users();
		without_close_range_no_descriptor_is_left_open_either();
		the_program_has_no_signal_blocked_or_ignored();
		what_it_says_and_how_it_ends_is_told();
		a_program_that_does_not_end_is_killed_with_all_that_it_started();
		only_roots_program_is_run();
	}
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	CHECK(system(command) == 0);
	return 0;
}
