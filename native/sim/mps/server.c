/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated nvidia-cuda-mps-server: holds its clients' connections, so that they learn of its end. Its standard
 * input is the control daemon's end of a socket pair. It outlives a daemon that dies: what is worse for whoever
 * has to clean up.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "mps.h"

enum { CLIENTS_MAX = 60 }; /* as an MPS server of compute capability 9.0 has them */

static struct {
	struct pollfd fd[2 + CLIENTS_MAX]; /* the daemon, the listener, the clients */
	int pid[2 + CLIENTS_MAX];
	nfds_t count;
} server;

static void drop(nfds_t i)
{
	close(server.fd[i].fd);
	server.count--;
	server.fd[i] = server.fd[server.count];
	server.pid[i] = server.pid[server.count];
}

static void add_client(void)
{
	struct ucred peer = {0};
	socklen_t size = sizeof peer;
	int fd = accept(server.fd[1].fd, NULL, NULL);
	if (fd < 0)
		return;
	if (server.count == 2 + CLIENTS_MAX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) {
		close(fd);
		return;
	}
	server.pid[server.count] = peer.pid;
	server.fd[server.count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void terminate(int pid)
{
	for (nfds_t i = 2; i < server.count; i++)
		if (server.pid[i] == pid) {
			const char mark = MPS_TERMINATED;
			if (write(server.fd[i].fd, &mark, 1) == 1)
				drop(i);
			return;
		}
}

/* Obeys the daemon. Returns whether to go on. */
static int obey(void)
{
	char text[MPS_LINE];
	ssize_t n = read(STDIN_FILENO, text, sizeof text - 1);
	if (n <= 0) {
		server.fd[0].fd = -1; /* the daemon has died: poll leaves it out */
		return 1;
	}
	text[n] = '\0';
	if (text[0] == MPS_TERMINATE)
		terminate(atoi(text + 1));
	return text[0] != MPS_QUIT;
}

int main(void)
{
	struct sockaddr_un address;
	socklen_t size = mps_server_address(&address, getpid());
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, size) < 0 || listen(fd, 64) < 0)
		return 1;
	server.fd[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
	server.fd[1] = (struct pollfd){.fd = fd, .events = POLLIN};
	server.count = 2;
	if (write(STDOUT_FILENO, "r", 1) != 1) /* ready */
		return 1;
	for (;;) {
		if (poll(server.fd, server.count, -1) < 0 && errno != EINTR)
			return 1;
		for (nfds_t i = server.count; i-- > 2;)
			if (server.fd[i].revents)
				drop(i);
		if (server.fd[1].revents)
			add_client();
		if (server.fd[0].fd >= 0 && server.fd[0].revents && !obey())
			return 0;
	}
}
