/* SPDX-License-Identifier: Apache-2.0 */
/* Whose slots are whose: those of processes, and of the further lines of work that a process of several contexts has. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_PID_NAMESPACE 0xeffffffcu
#define PID_MAX 4194304 /* no process of Linux has this number, or a larger one */

int sim_slot_lock(int fd, int command, short type, uint32_t slot, short *lock_type)
{
	struct flock range = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = SIM_LOCK_BASE + slot, .l_len = 1};
	if (fcntl(fd, command, &range) != 0)
		return -errno;
	if (lock_type)
		*lock_type = range.l_type;
	return 0;
}

static void read_own_name(char *out, size_t size)
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
	if (fd >= 0)
		close(fd);
	out[n > 0 ? n : 0] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

/* A process in another PID namespace does not know the number; here it has one that nobody else has. */
static int32_t pid_in_first_namespace(uint32_t slot)
{
	struct stat st;
	bool first = stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PID_NAMESPACE;
	return first ? getpid() : PID_MAX + (int32_t)slot;
}

/* Takes a free slot, of the process that has slot `owner`, or, with SIM_NO_SLOT, of one of its own. With the mutex held. */
static int claim_slot(struct sim_view *v, int fd, uint32_t owner, uint32_t *index)
{
	sim_sweep(v);
	for (uint32_t i = 0; i < SIM_MAX_SLOTS; i++) {
		if (sim_bit(v->state->live, i))
			continue;
		int rc = sim_slot_lock(fd, F_OFD_SETLK, F_WRLCK, i, NULL);
		if (rc)
			return rc;
		struct sim_slot *slot = &v->state->slot[i];
		uint32_t reuse = slot->reuse + 1;
		memset(slot, 0, sizeof *slot);
		slot->reuse = reuse;
		slot->pid = getpid();
		slot->first_pid = pid_in_first_namespace(owner == SIM_NO_SLOT ? i : owner);
		slot->uid = getuid();
		read_own_name(slot->name, sizeof slot->name);
		for (uint32_t g = 0; g < v->machine.gpu_count; g++) {
			slot->gpu[g].pause_ns = slot->gpu[g].resume_ns = SIM_NEVER;
			slot->gpu[g].timeslice_ns = v->machine.gpu[g].timeslice_us * 1000ull;
		}
		slot->owner = owner == SIM_NO_SLOT ? i : owner;
		slot->state = 1;
		sim_bit_set(v->state->live, i);
		*index = i;
		return 0;
	}
	return -ENOSPC;
}

int sim_slot_take(struct sim_view *v)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/state", v->dir);
	/* A file description of its own: the lock goes when the last process that holds it is gone. */
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	sim_lock(v);
	int rc = claim_slot(v, fd, SIM_NO_SLOT, &v->slot);
	sim_unlock(v);
	if (rc)
		close(fd);
	else
		v->slot_fd = fd;
	return rc;
}

int sim_line_take(struct sim_view *v, uint32_t *line)
{
	sim_lock(v);
	int rc = claim_slot(v, v->slot_fd, v->slot, line);
	sim_unlock(v);
	return rc;
}

void sim_fork_child(struct sim_view *v)
{
	if (v->slot_fd >= 0)
		close(v->slot_fd); /* else the parent's slot would outlive the parent */
	v->slot_fd = -1;
	v->slot = SIM_NO_SLOT;
}
