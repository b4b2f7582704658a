// SPDX-License-Identifier: Apache-2.0
/*
 * What sshd does for a user's session, with PAM's service files from a folder of the test:
 *
 *   open_session FOLDER USER CGROUP [NAME=VALUE ...] -- COMMAND [ARGUMENT ...]
 *
 * Joins CGROUP (a folder; "-": none), opens a session of the service "session" for USER with these variables in PAM's
 * environment, and runs COMMAND as USER with PAM's environment alone. Prints what modules tell the user to standard
 * error. Exit status: the command's; 100 where the session is not opened; 101 for what else fails.
 */
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <security/pam_appl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REFUSED = 100, FAILED = 101 };

static void must(int is_so, const char *what)
{
	if (is_so)
		return;
	perror(what);
	exit(FAILED);
}

static int tell(int count, const struct pam_message **messages, struct pam_response **responses, void *data)
{
	(void)data;
	for (int i = 0; i < count; i++)
		fprintf(stderr, "%s\n", messages[i]->msg);
	*responses = calloc((size_t)count, sizeof(**responses));
	return *responses ? PAM_SUCCESS : PAM_BUF_ERR;
}

static void join(const char *cgroup)
{
	char path[4096], pid[16];
	int fd, n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	must(fd >= 0 && write(fd, pid, (size_t)n) == n && close(fd) == 0, path);
}

static int run(const struct passwd *user, char **env, char **command)
{
	int status = 0;
	pid_t child = fork();

	must(child >= 0, "fork");
	if (child == 0) {
		must(initgroups(user->pw_name, user->pw_gid) == 0 && setgid(user->pw_gid) == 0 &&
			     setuid(user->pw_uid) == 0,
		     "user");
		environ = env;
		execvp(command[0], command);
		must(0, command[0]);
	}
	must(waitpid(child, &status, 0) == child, "wait");
	return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

int main(int argc, char **argv)
{
	const struct pam_conv conversation = {.conv = tell};
	const struct passwd *user = argc > 5 ? getpwnam(argv[2]) : NULL;
	pam_handle_t *pamh = NULL;
	int rc, at = 4, status;

	must(user && pam_start_confdir("session", argv[2], &conversation, argv[1], &pamh) == PAM_SUCCESS,
	     "PAM");
	if (strcmp(argv[3], "-") != 0)
		join(argv[3]);
	for (; at < argc && strcmp(argv[at], "--") != 0; at++)
		must(pam_putenv(pamh, argv[at]) == PAM_SUCCESS, argv[at]);
	must(at + 1 < argc, "command");
	rc = pam_open_session(pamh, 0);
	if (rc != PAM_SUCCESS) {
		fprintf(stderr, "not opened: %s\n", pam_strerror(pamh, rc));
		pam_end(pamh, rc);
		return REFUSED;
	}
	status = run(user, pam_getenvlist(pamh), &argv[at + 1]);
	must(pam_close_session(pamh, 0) == PAM_SUCCESS, "close");
	pam_end(pamh, PAM_SUCCESS);
	return status;
}
