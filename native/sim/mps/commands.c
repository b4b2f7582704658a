/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of the simulated control daemon, with the answers and privileges of NVIDIA's. */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"

void answer(nfds_t i, const char *format, ...)
{
	char text[8 * MPS_LINE];
	va_list list;
	int n;

	va_start(list, format);
	n = vsnprintf(text, sizeof text, format, list);
	va_end(list);
	if (n >= 0 && send(d.fd[i].fd, text, (size_t)n + 1, MSG_NOSIGNAL) < 0)
		note("an answer was not taken");
}

static bool may_change(nfds_t i)
{
	if (d.of[i].uid == d.uid || d.of[i].uid == 0)
		return true;
	answer(i,
	       "Insufficient privileges for UID %u. Control deamon settings can only be modified by the user who "
	       "started it or by the root user.\n",
	       d.of[i].uid);
	return false;
}

static void percent_command(nfds_t i, const char *text, double *percent)
{
	double value = atof(text);

	if (!may_change(i))
		return;
	if (value <= 0 || value > 100) {
		answer(i, "Invalid percentage, expected between (0.0, 100.0]\n");
		return;
	}
	*percent = value;
	answer(i, "%.1f\n", value);
}

static void memory_command(nfds_t i, const char *text, unsigned long long *mem)
{
	unsigned gpu;
	unsigned long long value;
	char unit;

	if (!may_change(i))
		return;
	if (sscanf(text, "%u %llu%c", &gpu, &value, &unit) != 3 || gpu >= GPUS ||
	    (unit != 'G' && unit != 'M')) {
		answer(i, "Invalid device ordinal!\n");
		return;
	}
	mem[gpu] = value << (unit == 'G' ? 30 : 20);
	answer(i, "%s", "");
}

static void list_clients(nfds_t i, bool with_heads)
{
	char text[4 * MPS_LINE] = "";
	size_t used = 0;

	if (!d.server) {
		answer(i, with_heads ? "Server not found\n" : "%s", "");
		return;
	}
	if (with_heads)
		used += (size_t)snprintf(text, sizeof text, "%-10s%-10s%-10s\n", "PID", "ID", "SERVER");
	for (nfds_t j = LISTENERS; j < d.count && used + 64 < sizeof text; j++)
		if (d.of[j].kind == CLIENT)
			used += (size_t)(with_heads ? snprintf(text + used, sizeof text - used,
							       "%-10d%-10d%-10d\n", d.of[j].pid, (int)j,
							       d.server)
						    : snprintf(text + used, sizeof text - used, "%d\n",
							       d.of[j].pid));
	answer(i, "%s", text);
}

static void end_client(int pid)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%c%d", MPS_TERMINATE, pid);

	if (send(d.server_fd, text, (size_t)n, MSG_NOSIGNAL) != n)
		note("server %d does not listen", d.server);
}

void quit(int timeout_s)
{
	note("quit command issued with timeout of %d", timeout_s);
	d.quitting = true;
	if (timeout_s < 0 && client_count() > 0) /* waits for the clients */
		return;
	end_server();
	for (int tenths = 0; d.server && tenths < 10 * (timeout_s < 0 ? 1 : timeout_s); tenths++) {
		reap(false);
		if (d.server)
			usleep(100000);
	}
	if (d.server)
		kill(d.server, SIGKILL);
	reap(true);
	unlink("nvidia-cuda-mps-control.pid");
	unlink("log");
	_exit(d.status);
}

static bool word(const char *line, const char *name, const char **rest)
{
	size_t length = strlen(name);

	if (strncmp(line, name, length) != 0 || (line[length] != '\0' && line[length] != ' '))
		return false;
	*rest = line + length + strspn(line + length, " ");
	return true;
}

/* Of a command "PID rest": checks that the server is that one. */
static bool of_server(nfds_t i, const char **rest)
{
	char *end;
	long pid = strtol(*rest, &end, 10);

	*rest = end + strspn(end, " ");
	if (d.server && pid == d.server)
		return true;
	answer(i, "Server %ld not found\n", pid);
	return false;
}

static void privileged(nfds_t i, const char *line)
{
	const char *rest;

	if (word(line, "start_server", &rest)) {
		unsigned uid = 0;
		if (sscanf(rest, "-uid %u", &uid) != 1)
			answer(i, "A user id (UID) is required to start a new server\n");
		else if (d.of[i].uid != 0 && d.of[i].uid != uid)
			answer(i, "Insufficient privileges for UID %u\n", d.of[i].uid);
		else
			answer(i, "%s", start_server(uid) ? "" : "Server not found\n");
	} else if (word(line, "shutdown_server", &rest)) {
		if (may_change(i) && of_server(i, &rest)) {
			if (strcmp(rest, "-f") == 0 || client_count() == 0)
				end_server();
			answer(i, "%s", "");
		}
	} else if (word(line, "terminate_client", &rest)) {
		if (may_change(i) && of_server(i, &rest)) {
			end_client(atoi(rest));
			answer(i, "%s", "");
		}
	} else if (word(line, "set_default_client_priority", &rest)) {
		if (may_change(i)) {
			d.priority = *rest == '1';
			answer(i, "%s", "");
		}
	} else {
		answer(i, "Unknown command \"%s\"\n", line);
	}
}

void command(nfds_t i, const char *line)
{
	const char *rest;
	char name[64] = "";

	if (sscanf(line, "%63s", name) == 1)
		mps_fault(name);
	note("Cmd:%s", line);
	if (word(line, "get_server_list", &rest))
		d.server ? answer(i, "%d\n", d.server) : answer(i, "%s", "");
	else if (word(line, "get_client_list", &rest))
		of_server(i, &rest) ? list_clients(i, false) : (void)0;
	else if (word(line, "ps", &rest))
		list_clients(i, true);
	else if (word(line, "set_default_active_thread_percentage", &rest))
		percent_command(i, rest, &d.percent);
	else if (word(line, "get_default_active_thread_percentage", &rest))
		answer(i, "%.1f\n", d.percent);
	else if (word(line, "set_default_device_pinned_mem_limit", &rest))
		memory_command(i, rest, d.mem);
	else if (word(line, "get_default_device_pinned_mem_limit", &rest))
		answer(i, "%lluM\n", d.mem[(unsigned)atoi(rest) % GPUS] >> 20);
	else if (word(line, "set_active_thread_percentage", &rest))
		of_server(i, &rest) ? percent_command(i, rest, &d.server_percent) : (void)0;
	else if (word(line, "set_device_pinned_mem_limit", &rest))
		of_server(i, &rest) ? memory_command(i, rest, d.server_mem) : (void)0;
	else if (d.is_static && word(line, "lspart", &rest))
		list_partitions(i);
	else if (d.is_static && word(line, "sm_partition", &rest))
		may_change(i) ? partition_command(i, rest) : (void)0;
	else if (!word(line, "quit", &rest))
		privileged(i, line);
	else if (d.of[i].uid != d.uid && d.of[i].uid != 0)
		answer(i, "Not enough privilege to execute quit command\n");
	else
		quit(strncmp(rest, "-t ", 3) == 0 ? atoi(rest + 3) : -1);
}
