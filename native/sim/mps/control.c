/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated nvidia-cuda-mps-control: `-d` starts the daemon, without options it sends the commands of standard
 * input to it. Faults: lines "COMMAND hang" or "COMMAND die" of $HAMI_SIM/mps; COMMAND `start` is the daemon's start,
 * `start-static` that with -S; "sm_partition refuse". With $HAMI_SIM/mps-static it knows -S (partitions.c).
 */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

const char *mps_pipe(void)
{
	const char *pipe = getenv(MPS_PIPE_VARIABLE);
	return pipe && *pipe ? pipe : MPS_PIPE_DEFAULT;
}

/* Returns whether this fault of a command is wanted. */
static bool is_wanted(const char *command, const char *fault)
{
	char path[2048], line[MPS_LINE], name[128], what[32];
	const char *machine = getenv("HAMI_SIM");
	bool found = false;
	FILE *file;

	snprintf(path, sizeof path, "%s/mps", machine ? machine : "");
	file = machine ? fopen(path, "re") : NULL;
	if (!file)
		return false;
	while (!found && fgets(line, sizeof line, file))
		found = sscanf(line, "%127s %31s", name, what) == 2 && strcmp(name, command) == 0 &&
			strcmp(what, fault) == 0;
	fclose(file);
	return found;
}

void mps_fault(const char *command)
{
	if (is_wanted(command, "die"))
		_exit(1);
	while (is_wanted(command, "hang"))
		pause();
}

bool mps_refused(const char *command)
{
	return is_wanted(command, "refuse");
}

/* Connects as a user interface: by the socket of the daemon's own user, else by that of all. */
static int connect_ui(void)
{
	static const char *const names[] = {"control_privileged", "control"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct sockaddr_un address;
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && mps_path_address(&address, mps_pipe(), names[i]) == 0 &&
		    connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
		    send(fd, "UI\n", 3, MSG_NOSIGNAL) == 3)
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

/* Prints the answer to one command. Returns 1 when the daemon is no longer there. */
static int print_answer(int fd)
{
	char c;

	while (recv(fd, &c, 1, 0) == 1) {
		if (c == '\0')
			return 0;
		putchar(c);
	}
	return 1;
}

static int run_ui(void)
{
	char line[MPS_LINE];
	int fd = connect_ui();

	if (fd < 0) {
		puts("Cannot find MPS control daemon process");
		return 1;
	}
	while (fgets(line, sizeof line, stdin)) {
		size_t length = strcspn(line, "\n");
		int is_quit = strncmp(line, "quit", 4) == 0;

		if (length == 0)
			continue;
		line[length] = '\n';
		if (send(fd, line, length + 1, MSG_NOSIGNAL) < 0)
			return 1;
		if (print_answer(fd))
			return is_quit ? 0 : 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int multi_user = 0, daemonize = 0, is_static = 0;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-d") == 0) {
			daemonize = 1;
		} else if (strcmp(argv[i], "-M") == 0 || strcmp(argv[i], "-multiuser-server") == 0) {
			multi_user = 1;
		} else if ((strcmp(argv[i], "-S") == 0 || strcmp(argv[i], "--static-partitioning") == 0) &&
			   partitions_known()) {
			is_static = 1;
		} else {
			/* As 580.159 has it, a NUL for the option's name, and no error. */
			printf("Unrecognized option %c\nCUDA MPS Control for Linux/Unix/QNX.\n", '\0');
			return 0;
		}
	}
	if (!daemonize)
		return run_ui();
	if (multi_user && geteuid() != 0) {
		puts("Only root user may enable -multiuser-server!");
		return 1;
	}
	mps_fault("start");
	if (is_static)
		mps_fault("start-static");
	return daemon_run(multi_user, is_static);
}
