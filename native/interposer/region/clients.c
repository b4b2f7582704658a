/* SPDX-License-Identifier: Apache-2.0 */
#include "region/clients.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "hami_contract.h"
#include "region/descriptor.h"

static struct {
	bool asked; /* there is an entry, or there is none to be had */
	bool joined;
	uint32_t place; /* of the own entry */
	struct hami_descriptor file;
} clients = {.file.fd = -1};

static off_t offset_of(uint32_t place)
{
	return (off_t)(place * sizeof(struct hami_client));
}

static int entry_lock(int fd, int command, uint32_t place, struct flock *lock)
{
	*lock = (struct flock){
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset_of(place), .l_len = 1};
	return fcntl(fd, command, lock);
}

/* Opens the file. Returns 0 or -errno. */
static int open_file(void)
{
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	struct hami_descriptor *file = &clients.file;
	int length = directory
			     ? snprintf(file->path, sizeof file->path, "%s/" HAMI_FILE_MPS_CLIENTS, directory)
			     : -1;
	if (length < 0 || (size_t)length >= sizeof file->path)
		return -ENOENT;
	int fd = hami_descriptor_open(file);
	int rc = fd < 0 ? fd : hami_descriptor_adopt(file, fd);
	/* Never read, as it may be cut short: the entry's lock outlives the descriptor, should the program close that. */
	if (!rc && mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		rc = -errno;
	return rc;
}

/* Takes the first entry that is free. Returns 0 or -errno. */
static int take_entry(void)
{
	int rc = open_file();
	for (uint32_t i = 0; !rc && i < HAMI_CLIENTS_MOST; i++) {
		struct flock lock;
		if (!entry_lock(clients.file.fd, F_OFD_SETLK, i, &lock)) {
			clients.place = i;
			return 0;
		}
		rc = errno == EAGAIN || errno == EACCES ? 0 : -errno;
	}
	return rc ? rc : -EUSERS;
}

bool hami_clients_join(void)
{
	if (clients.asked)
		return clients.joined;
	clients.asked = true;
	int rc = take_entry();
	clients.joined = rc == 0;
	if (rc)
		hami_log(1, "no entry among the clients of the MPS server (%s); it keeps to no turn\n",
			 strerror(-rc));
	return clients.joined;
}

bool hami_clients_write(const struct hami_client *own)
{
	int fd = hami_descriptor(&clients.file);
	return fd >= 0 && pwrite(fd, own, sizeof *own, offset_of(clients.place)) == (ssize_t)sizeof *own;
}

size_t hami_clients_read(struct hami_client list[HAMI_CLIENTS_MOST])
{
	int fd = hami_descriptor(&clients.file);
	ssize_t bytes = fd < 0 ? 0 : pread(fd, list, HAMI_CLIENTS_MOST * sizeof *list, 0);
	const size_t count = bytes < 0 ? 0 : (size_t)bytes / sizeof *list;
	size_t kept = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct flock lock;
		if (i == clients.place || list[i].version != HAMI_CLIENT_VERSION ||
		    list[i].count > HAMI_CLIENT_CHANNELS_MOST)
			continue;
		if (entry_lock(fd, F_OFD_GETLK, i, &lock) || lock.l_type == F_UNLCK)
			continue;
		list[kept] = list[i];
		list[kept++].place = i;
	}
	return kept;
}

void hami_clients_forked(void)
{
	if (!clients.asked)
		return;
	clients.asked = clients.joined = false;
	clients.file.fd = -1;
}
