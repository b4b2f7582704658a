/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated control daemon: one thread, one server at a time, as the manual page says. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"

struct mps_daemon d;

__attribute__((format(printf, 1, 2))) void note(const char *format, ...)
{
	char when[32];
	time_t now = time(NULL);
	struct tm parts;
	va_list list;

	if (!d.log)
		return;
	strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
	fprintf(d.log, "[%s.000 Control %5d] ", when, getpid());
	va_start(list, format);
	vfprintf(d.log, format, list);
	va_end(list);
	fputc('\n', d.log);
	fflush(d.log);
}

static void drop(nfds_t i)
{
	close(d.fd[i].fd);
	d.count--;
	d.fd[i] = d.fd[d.count];
	d.of[i] = d.of[d.count];
}

int client_count(void)
{
	int count = 0;
	for (nfds_t i = LISTENERS; i < d.count; i++)
		count += d.of[i].kind == CLIENT;
	return count;
}

void end_server(void)
{
	const char quit = MPS_QUIT;
	if (d.server && send(d.server_fd, &quit, 1, MSG_NOSIGNAL) != 1)
		kill(d.server, SIGKILL);
}

/* Notes the end of the server, if it has ended. */
void reap(bool block)
{
	int status;

	if (!d.server || waitpid(d.server, &status, block ? 0 : WNOHANG) != d.server)
		return;
	note("Server %d exited with status %d", d.server,
	     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	d.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	close(d.server_fd);
	d.server = 0;
	for (nfds_t i = d.count; i-- > LISTENERS;)
		if (d.of[i].kind == CLIENT)
			drop(i);
}

/* Returns whether a server of this user is there, having started one if there is none. */
bool start_server(unsigned uid)
{
	int pair[2];
	char ready;

	if (d.server)
		return d.multi_user || d.server_uid == uid;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return false;
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 2; i++)
			if (dup2(pair[1], i) < 0)
				_exit(1);
		if (!d.multi_user && setuid(uid) < 0)
			_exit(1);
		execlp(MPS_SERVER_NAME, MPS_SERVER_NAME, (char *)NULL);
		_exit(1);
	}
	close(pair[1]);
	note("Starting new server %d for user %u", child, uid);
	d.server = child;
	d.server_fd = pair[0];
	d.server_uid = uid;
	d.server_percent = d.percent;
	memcpy(d.server_mem, d.mem, sizeof d.mem);
	if (child < 0 || read(pair[0], &ready, 1) != 1) {
		reap(child > 0);
		return false;
	}
	note("NEW SERVER %d: Ready", child);
	return true;
}

/* Gives a waiting client its server, or lets it wait while the server is another user's. */
static void serve(nfds_t i)
{
	const struct partition *own = partition_of(d.of[i].partition);

	if (d.is_static && !own) {
		answer(i, "ERROR 915"); /* CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION */
		d.of[i].kind = NEW;
		return;
	}
	if (!start_server(d.of[i].uid)) {
		if (!d.server)
			answer(i, "ERROR 805");
		else if (client_count() == 0)
			end_server();
		return;
	}
	d.of[i].kind = CLIENT;
	note("NEW CLIENT %d from user %u: Server already exists", d.of[i].pid, d.of[i].uid);
	answer(i, "SERVER %d %f %d %llu %u", d.server,
	       own ? 100.0 * own->chunks * d.chunk_sms / d.all_sms : d.server_percent, d.priority,
	       d.server_mem[0], own ? own->chunks * d.chunk_sms : 0);
}

static void one_line(nfds_t i, const char *line)
{
	if (d.of[i].kind == UI) {
		command(i, line);
	} else if (strcmp(line, "UI") == 0) {
		note("NEW UI");
		d.of[i].kind = UI;
	} else if (strncmp(line, "CLIENT ", 7) == 0) {
		snprintf(d.of[i].partition, sizeof d.of[i].partition, "%.127s", line + 7);
		d.of[i].kind = WAITING_CLIENT;
	}
}

/* Returns false when the connection is at its end. */
static bool take(nfds_t i)
{
	struct connection *c = &d.of[i];
	ssize_t n = recv(d.fd[i].fd, c->line + c->used, sizeof c->line - c->used - 1, MSG_DONTWAIT);
	char *end;

	if (n <= 0)
		return n < 0 && errno == EAGAIN;
	c->used += (size_t)n;
	c->line[c->used] = '\0';
	while ((end = strchr(c->line, '\n'))) {
		char line[MPS_LINE];
		size_t length = (size_t)(end - c->line);

		memcpy(line, c->line, length);
		line[length] = '\0';
		c->used -= length + 1;
		memmove(c->line, end + 1, c->used + 1);
		one_line(i, line);
	}
	return c->used < sizeof c->line - 1;
}

static void add(int listener)
{
	struct ucred peer = {0};
	socklen_t size = sizeof peer;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	note("Accepting connection...");
	if (fd < 0)
		return;
	if (d.count == LISTENERS + CONNECTIONS || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) {
		close(fd);
		return;
	}
	d.of[d.count] = (struct connection){.pid = peer.pid, .uid = peer.uid};
	d.fd[d.count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void loop(void)
{
	for (;;) {
		poll(d.fd, d.count, 100);
		reap(false);
		for (nfds_t i = d.count; i-- > LISTENERS;)
			if (d.fd[i].revents && !take(i))
				drop(i);
		for (nfds_t i = d.count; i-- > LISTENERS;)
			if (d.of[i].kind == WAITING_CLIENT)
				serve(i);
		for (nfds_t i = 0; i < LISTENERS; i++)
			if (d.fd[i].revents)
				add(d.fd[i].fd);
		if (d.quitting && client_count() == 0)
			quit(1);
	}
}

static int listen_at(const char *name, mode_t mode)
{
	struct sockaddr_un address;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || mps_path_address(&address, mps_pipe(), name) < 0)
		return -1;
	unlink(address.sun_path);
	if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
	    chmod(address.sun_path, mode) < 0 || listen(fd, 64) < 0)
		return -1;
	return fd;
}

static void read_environment(void)
{
	const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	const char *mem = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	unsigned gpu;
	unsigned long long value;
	char unit;

	d.percent = percent ? atof(percent) : 100;
	if (mem && sscanf(mem, "%u=%llu%c", &gpu, &value, &unit) == 3 && gpu < GPUS)
		d.mem[gpu] = value << (unit == 'G' ? 30 : 20);
}

/* Makes the files of the pipe directory, which is the working directory. Returns 0 or 1. */
static int make_files(void)
{
	const char *log = getenv("CUDA_MPS_LOG_DIRECTORY");
	char path[2048];
	FILE *pid;
	int lock = open("control_lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);

	if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0) {
		puts("An instance of this daemon is already running");
		return 1;
	}
	fchmod(lock, 0666);
	snprintf(path, sizeof path, "%s/control.log", log ? log : "/var/log/nvidia-mps");
	d.log = fopen(path, "ae");
	d.fd[0] = (struct pollfd){.fd = listen_at("control", 0666), .events = POLLIN};
	d.fd[1] = (struct pollfd){.fd = listen_at("control_privileged", 0755), .events = POLLIN};
	d.count = LISTENERS;
	pid = fopen("nvidia-cuda-mps-control.pid", "we");
	if (d.fd[0].fd < 0 || d.fd[1].fd < 0 || !pid) {
		puts("Cannot access CUDA_MPS_PIPE_DIRECTORY");
		return 1;
	}
	fprintf(pid, "%d\n", getpid());
	fclose(pid);
	if (mkfifo("log", 0777) == 0)
		chmod("log", 0777);
	note("Starting control daemon using socket %s/control", mps_pipe());
	return 0;
}

int daemon_run(int multi_user, int is_static)
{
	int pair[2];
	char status = 1;

	if (chdir(mps_pipe()) < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", mps_pipe());
		return 1;
	}
	fflush(stdout);
	pid_t child = fork();
	if (child != 0) {
		close(pair[1]);
		return child > 0 && read(pair[0], &status, 1) == 1 ? status : 1;
	}
	close(pair[0]);
	setsid();
	umask(0);
	signal(SIGPIPE, SIG_IGN);
	d.multi_user = multi_user != 0;
	d.is_static = is_static != 0;
	d.uid = geteuid();
	read_environment();
	status = (char)make_files();
	fflush(stdout);
	if (write(pair[1], &status, 1) != 1 || status)
		_exit(1);
	close(pair[1]);
	int null = open("/dev/null", O_RDWR);
	for (int i = 0; i < 3 && null >= 0; i++)
		dup2(null, i);
	loop();
	return 0;
}
