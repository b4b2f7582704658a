/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <sys/stat.h>

static struct tenant {
	struct rm_disable_channels channels;
	int ready, pid;
} * tenant;

static void run(void *number)
{
	struct tenant *me = &tenant[*(int *)number];
	memset(&watch, 0, sizeof watch);
	CHECK(geteuid() != 0 || setuid(65533) == 0);
	open_device();
	CUfunction f = spin_function();
	me->channels = compute_channels(true, 64);
	CHECK(me->channels.count == 8);
	me->pid = getpid();
	spin(f, NULL, 3600 * 1000 * MS);
	__atomic_store_n(&me->ready, 1, __ATOMIC_RELEASE);
	pause();
}

static pid_t start_tenant(int number)
{
	tenant[number].ready = 0;
	pid_t pid = start_child(run, &number);
	while (!__atomic_load_n(&tenant[number].ready, __ATOMIC_ACQUIRE))
		usleep(200);
	return pid;
}

static uint32_t set_foreign(const struct rm_disable_channels *channels, bool disable)
{
	struct rm_disable_channels p = *channels;
	const struct seen *s = subdevice();
	p.disable = disable;
	return control(s->fd, s->client, s->handle, RM_DISABLE_CHANNELS, &p, sizeof p);
}

static bool runs(void)
{
	long long busy = state_number("busy_ns");
	usleep(20000);
	return state_number("busy_ns") != busy;
}

static void append(struct rm_disable_channels *to, const struct rm_disable_channels *from)
{
	for (uint32_t i = 0; i < from->count; i++, to->count++) {
		to->clients[to->count] = from->clients[i];
		to->channels[to->count] = from->channels[i];
	}
}

static void hold_them(void *other_user)
{
	memset(&watch, 0, sizeof watch);
	CHECK(!*(int *)other_user || setuid(65534) == 0);
	open_device();
	pid_t second;
	CHECK(runs());
	CHECK(set_foreign(&tenant[0].channels, true) == RM_OK);
	CHECK(!runs());
	CHECK(kill(tenant[0].pid, SIGSTOP) == 0 || *(int *)other_user);
	CHECK(set_foreign(&tenant[0].channels, false) == RM_OK);
	CHECK(runs());
	/* A list may name several clients: all are paused, or none. */
	second = start_tenant(1);
	CHECK(tenant[1].channels.clients[0] != tenant[0].channels.clients[0]);
	struct rm_disable_channels both = tenant[0].channels;
	append(&both, &tenant[1].channels);
	CHECK(set_foreign(&both, true) == RM_OK);
	CHECK(!runs());
	CHECK(set_foreign(&tenant[1].channels, false) == RM_OK);
	CHECK(runs());
	/* Seven of eight pause nobody. */
	CHECK(set_foreign(&both, false) == RM_OK);
	both.count--;
	CHECK(set_foreign(&tenant[0].channels, true) == RM_OK);
	CHECK(set_foreign(&both, true) == RM_OK);
	CHECK(runs());
	/* What is gone is refused, and with it the rest of the list. */
	CHECK(set_foreign(&tenant[0].channels, false) == RM_OK);
	kill(second, SIGKILL);
	CHECK(WIFSIGNALED(child_status(second)));
	CHECK(set_foreign(&tenant[1].channels, true) == RM_INVALID_CHANNEL);
	CHECK(set_foreign(&both, true) == RM_INVALID_CHANNEL);
	CHECK(runs());
	/* The process's own are as ever. */
	CHECK(set_disabled(true) == RM_OK && set_disabled(false) == RM_OK);
}

int main(void)
{
	int other_user = geteuid() == 0;
	make_machine("h200");
	CHECK(chmod(machine_dir, 0755) == 0);
	tenant = shared_memory(2 * sizeof *tenant);
	pid_t first = start_tenant(0);
	if (!other_user)
		fprintf(stderr, "not root: pausing another user's is not tried\n");
	for (; other_user >= 0; other_user--)
		CHECK(child_status(start_child(hold_them, &other_user)) == 0);
	kill(first, SIGKILL);
	CHECK(WIFSIGNALED(child_status(first)));
	return 0;
}
