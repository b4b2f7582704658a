// SPDX-License-Identifier: GPL-2.0-or-later
/* suspension.h: which steps have a watch, what it is told, and that nobody else's process is ever killed in its place. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "suspension.h"

static char folder[] = "/tmp/hami-watch-XXXXXX", interposer[128], program[128], told[128], line[1024];
static struct options options = {.stages = "/stages", .interposer = interposer};
static struct hami_limits job = {.swap = HAMI_SWAP_IN, .mode = HAMI_MODE_SHARE};
static unsigned int kills;

/* In place of libc's: counts. */
int kill(pid_t pid, int number)
{
	(void)pid;
	(void)number;
	kills++;
	return 0;
}

static void write_watch(const char *body)
{
	FILE *file = fopen(program, "w");

	CHECK(file && fprintf(file, "#!/bin/sh\n%s\n", body) > 0 && fclose(file) == 0);
	CHECK(chmod(program, 0755) == 0);
}

static int begin(const char *body)
{
	write_watch(body);
	kills = 0;
	line[0] = '\0';
	return suspension_begin(&options, 7, &job, line, sizeof(line));
}

static void read_told(char *text, size_t size)
{
	FILE *file = fopen(told, "r");

	CHECK(file);
	text[fread(text, 1, size - 1, file)] = '\0';
	fclose(file);
}

static void it_is_told_its_job_and_the_first_task_and_ends_by_itself(void)
{
	char text[256];

	CHECK(begin("echo \"$*\" >\"${0%/*}/told\"; read task; echo $task >>\"${0%/*}/told\"; read end") ==
	      0);
	suspension_task(4711);
	for (int looks = 0; looks < 500; looks++) {
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		if (access(told, R_OK) == 0) {
			read_told(text, sizeof(text));
			if (strstr(text, "4711"))
				break;
		}
	}
	CHECK_TEXT(text, "--job 7 --program /stages/suspend\n4711\n");
	suspension_end();
	CHECK(waitpid(-1, NULL, 0) < 0 && errno == ECHILD);
	suspension_end(); /* SPANK's exit, after the last task's */
}

static void a_number_that_slurm_has_waited_for_is_nobodys_to_kill(void)
{
	CHECK(begin("exit 0") == 0);
	CHECK(waitpid(-1, NULL, 0) > 0);
	suspension_task(4711); /* nobody reads it */
	suspension_end();
	CHECK(kills == 0);
}

static void one_that_does_not_end_holds_up_nobody_for_long(void)
{
	time_t begun = time(NULL);

	CHECK(begin("exec sleep 5") == 0);
	suspension_end();
	CHECK(kills > 10 && time(NULL) - begun < 30);
}

static void only_steps_whose_memory_can_be_moved_have_one(void)
{
	job.swap = HAMI_SWAP_NEVER;
	CHECK(begin("exit 0") == 0);
	job.swap = HAMI_SWAP_IN;
	job.mode = HAMI_MODE_MPS;
	CHECK(begin("exit 0") == 0);
	job.mode = HAMI_MODE_SHARE;
	suspension_end();
	CHECK(kills == 0);
}

static void what_is_wrong_is_said(void)
{
	write_watch("exit 0");
	CHECK(chmod(program, 0777) == 0);
	CHECK(suspension_begin(&options, 7, &job, line, sizeof(line)) < 0);
	CHECK(strstr(line, "must be a file of root that only root can write"));
	CHECK(unlink(program) == 0);
	CHECK(suspension_begin(&options, 7, &job, line, sizeof(line)) < 0);
	CHECK(strstr(line, "is not there"));
	suspension_task(1);
	suspension_end();
}

int main(void)
{
	CHECK(mkdtemp(folder) && signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* as slurmstepd does */
	snprintf(interposer, sizeof(interposer), "%s/libhami-hpc.so", folder);
	snprintf(program, sizeof(program), "%s/hami-hpc-watch", folder);
	snprintf(told, sizeof(told), "%s/told", folder);
	it_is_told_its_job_and_the_first_task_and_ends_by_itself();
	a_number_that_slurm_has_waited_for_is_nobodys_to_kill();
	only_steps_whose_memory_can_be_moved_have_one();
	what_is_wrong_is_said();
	one_that_does_not_end_holds_up_nobody_for_long();
	unlink(told);
	unlink(program);
	rmdir(folder);
	return 0;
}
