/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hami-hpc-watch: tells root when Slurm suspends and resumes a step (docs/adr/079).
 *
 *   hami-hpc-watch --job ID --program PATH [--config PATH]
 *
 * The SPANK plugin starts it in slurmstepd, for each step whose device memory can be moved, and writes the id of the step's
 * first task to its standard input. To Slurm it is a process of the step then: it gets SIGTSTP some time before all of them
 * are stopped (PreemptParameters=suspend_grace_time), and SIGCONT when they go on. At each of these it has PROGRAM run, by
 * a second process outside of the step, which nobody stops: what that does may hold locks of the node. Once no signal has
 * come for some seconds PROGRAM is run again, and asks slurmctld: slurmd may have taken Slurm's orders in another sequence.
 *
 * Both are root's, so the job's user cannot signal them. They end when slurmstepd closes their standard input.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "step.h"

#define PROGRAM_SECONDS 60 /* it gives an order and does not wait */
/*
 * The job's user can have Slurm send these signals as often as they like. So the program runs so often at once, and then
 * once in so many seconds; and so do the looks for stopped programs, which read all of the node's. In Slurm's shortest time
 * slice, 5 s, a job is suspended or resumed once.
 */
#define AT_ONCE 10
#define RUN_MS 2000
#define LOOKS_MS 10000
/*
 * After the last signal PROGRAM asks slurmctld, and again as long as it says so by this exit status (stages/suspend.py, which
 * asks once for all steps of a job on the node, and relies on ASK_MS). The steps of a cluster are suspended in one moment,
 * so each adds a time of its own, shorter than SPREAD_MS.
 */
#define ASK_MS 5000
#define ASK_AGAIN_MS 10000
#define SPREAD_MS 5000
#define ASK_AGAIN 75
#define LOOK_MS                                                                                              \
	50 /* between two looks for stopped programs; shorter than any pause of Slurm's, of whole seconds */
#define LOOKS 10

static const char *job, *program, *config;

/* What may be done AT_ONCE times, and then once in each_ms. All of it is saved at first: last_ms 0 is the boot. */
struct allowance {
	int64_t each_ms, saved_ms, last_ms;
};

/* Returns how long it takes until it may be done once more, ms; 0 for now. */
static int missing_ms(struct allowance *own)
{
	const int64_t most = AT_ONCE * own->each_ms;
	struct timespec time;
	int64_t now;

	clock_gettime(CLOCK_BOOTTIME, &time);
	now = (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
	own->saved_ms += now - own->last_ms;
	own->last_ms = now;
	if (own->saved_ms > most)
		own->saved_ms = most;
	return own->saved_ms < own->each_ms ? (int)(own->each_ms - own->saved_ms) : 0;
}

/* ---- outside of the step ---- */

/* Returns ms and a random time. */
static int spread(int ms)
{
	unsigned int random = 0;

	if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
		random = (unsigned int)getpid() * 2654435761u;
	return ms + (int)(random % SPREAD_MS);
}

/*
 * Waits for the program, and returns its exit status; ends it when it takes too long. SIGCHLD is blocked, so that it can be
 * waited for.
 */
static int wait_for(pid_t child)
{
	const struct timespec patience = {.tv_sec = PROGRAM_SECONDS};
	sigset_t ended;
	int status = 0;

	sigemptyset(&ended);
	sigaddset(&ended, SIGCHLD);
	while (waitpid(child, &status, WNOHANG) == 0) {
		if (sigtimedwait(&ended, NULL, &patience) < 0 && errno == EAGAIN) {
			syslog(LOG_ERR, "job %s: %s did not end within %d s", job, program, PROGRAM_SECONDS);
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return -1;
		}
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == ASK_AGAIN)
		return ASK_AGAIN;
	if (status)
		syslog(LOG_ERR, "job %s: %s ended with status %#x", job, program, (unsigned int)status);
	return status ? -1 : 0;
}

/* Runs the program. Returns 0, ASK_AGAIN, or -1 when it failed. */
static int run(const char *direction)
{
	const char *const argv[] = {program, direction, "--job", job, config ? "--config" : NULL,
				    config,  NULL};
	pid_t child = fork();

	if (child < 0) {
		syslog(LOG_ERR, "job %s: %s cannot be started: %m", job, program);
	} else if (child == 0) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execv(program, (char *const *)argv);
		_exit(127);
	} else {
		return wait_for(child);
	}
	return -1;
}

/*
 * Follows what the process in the step writes. Of what has come meanwhile, the last counts. When nothing has come for a
 * while, asks whether Slurm says the same.
 */
__attribute__((noreturn)) static void follow(int orders)
{
	static char all[1 << 16]; /* all that a pipe holds */
	struct pollfd waiting = {.fd = orders, .events = POLLIN};
	struct allowance runs = {.each_ms = RUN_MS};
	int quiet_ms = -1;
	bool out = false;

	for (;;) {
		int found = poll(&waiting, 1, quiet_ms);
		if (found < 0)
			continue; /* all signals are blocked, but for a tracer's */
		if (found == 0) {
			quiet_ms =
				run(out ? "after-out" : "after-in") == ASK_AGAIN ? spread(ASK_AGAIN_MS) : -1;
		} else {
			ssize_t n = read(orders, all, sizeof all);
			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				_exit(0);
			out = all[n - 1] == 'o';
			run(out ? "out-soon" : "in");
			quiet_ms = spread(ASK_MS);
		}
		runs.saved_ms -= RUN_MS;
		poll(NULL, 0, missing_ms(&runs));
	}
}

/* Starts follow() in a process that has nothing of slurmstepd's or the step's: no parent, session or descriptor. */
static int start_follower(void)
{
	int ends[2], status = 1;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0 || (child = fork()) < 0)
		return -1;
	if (child == 0) {
		int null = open("/dev/null", O_RDWR);
		close(ends[1]);
		if (null < 0 || setsid() < 0 || dup2(null, STDIN_FILENO) < 0)
			_exit(1);
		switch (fork()) {
		case 0:
			cgroup_leave_job();
			follow(ends[0]);
		case -1:
			_exit(1);
		default:
			_exit(0);
		}
	}
	close(ends[0]);
	waitpid(child, &status, 0);
	if (status == 0)
		return ends[1];
	close(ends[1]);
	return -1;
}

/* ---- in the step ---- */

/* Reads the number of a process from standard input, up to a newline. Returns 0 when slurmstepd closes it before. */
static pid_t read_task(void)
{
	char text[16];
	size_t length = 0;

	while (length < sizeof text - 1) {
		ssize_t n = read(STDIN_FILENO, text + length, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (text[length] == '\n')
			break;
		length++;
	}
	text[length] = '\0';
	return (pid_t)atoi(text);
}

/*
 * SIGTSTP stops a program that does not handle it, and a stopped program moves nothing. So those of the step go on that are
 * stopped soon after it. What stops them later is Slurm, and final: it stops this process too, which says nothing then.
 */
static void watch(int signals, int orders, pid_t slurmstepd)
{
	struct pollfd waiting[] = {{.fd = signals, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
	struct allowance bursts = {.each_ms = LOOKS_MS};
	struct signalfd_siginfo came;
	int looks = 0;

	for (;;) {
		int found = poll(waiting, 2, looks ? LOOK_MS : -1);
		if (found < 0 && errno != EINTR)
			return;
		if (found == 0) {
			if (getppid() != slurmstepd)
				return; /* it was killed, and another process is the parent of what it left */
			step_go_on(slurmstepd);
			looks--;
		} else if (waiting[0].revents && read(signals, &came, sizeof came) == (ssize_t)sizeof came) {
			const char order = came.ssi_signo == SIGTSTP ? 'o' : 'i';
			looks = 0;
			if (came.ssi_signo == SIGTSTP && !missing_ms(&bursts)) {
				bursts.saved_ms -= LOOKS_MS;
				looks = LOOKS;
			}
			if (write(orders, &order, 1) < 0 && errno == EPIPE)
				return;
		} else if (waiting[1].revents) {
			return; /* slurmstepd closed it: the step has ended */
		}
	}
}

static bool parse(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--job"))
			job = argv[i + 1];
		else if (!strcmp(argv[i], "--program"))
			program = argv[i + 1];
		else if (!strcmp(argv[i], "--config"))
			config = argv[i + 1];
		else
			return false;
	}
	return argc % 2 && job && program;
}

int main(int argc, char **argv)
{
	int orders, signals;
	sigset_t all, wanted;
	pid_t task, slurmstepd = getppid();

	if (!parse(argc, argv)) {
		fputs("usage: hami-hpc-watch --job ID --program PATH [--config PATH]\n"
		      "hami_hpc's SPANK plugin starts it.\n",
		      stderr);
		return 2;
	}
	openlog("hami-hpc-watch", LOG_PID, LOG_DAEMON);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGTSTP);
	sigaddset(&wanted, SIGCONT);
	if ((signals = signalfd(-1, &wanted, SFD_CLOEXEC)) < 0 || (orders = start_follower()) < 0) {
		syslog(LOG_ERR, "job %s: its memory stays on the GPU when Slurm suspends it: %m", job);
		return 1;
	}
	if (!(task = read_task()))
		return 0;
	if (cgroup_join(task) < 0) {
		syslog(LOG_ERR,
		       "job %s: its memory stays on the GPU when Slurm suspends it: the cgroup of process %d: %m",
		       job, (int)task);
		return 1;
	}
	watch(signals, orders, slurmstepd);
	return 0;
}
