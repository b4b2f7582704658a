/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/swap_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "hami_contract.h"
#include "limits/host_room.h"

#define BOUNCE ((size_t)16 << 10)

static const char *folder; /* NULL: memory stays in the host's memory */

void hami_swap_file_begin(void)
{
	const char *path = secure_getenv(HAMI_ENV_SWAP_DIR);
	folder = path && *path ? strdup(path) : NULL;
}

bool hami_swap_file_wanted(void)
{
	return folder;
}

static void complain(const char *reason)
{
	static _Atomic bool said; /* several threads copy */
	if (!atomic_exchange(&said, true))
		hami_log(0, HAMI_ENV_SWAP_DIR "=%.200s holds no device memory (%s); it stays on the GPU\n",
			 folder, reason);
}

uint64_t hami_swap_file_room(void)
{
	struct statfs disk;
	if (*folder != '/') { /* the program may change its directory */
		complain("not an absolute path");
		return 0;
	}
	if (statfs(folder, &disk)) {
		complain(strerror(errno));
		return 0;
	}
	const uint64_t room = (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
	const uint64_t memory = disk.f_type == TMPFS_MAGIC ? hami_host_room() : UINT64_MAX;
	return room < memory ? room : memory;
}

/*
 * The kernel copies, by way of the process itself: a fault is an error then. `from` is no memory of a device. Where it may
 * not (seccomp), nothing is known of the process's memory either (driver/movable.c), and nothing moves.
 */
static bool copy(void *to, const void *from, size_t bytes)
{
	struct iovec own = {.iov_base = to, .iov_len = bytes};
	struct iovec other = {.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};
	while (own.iov_len) {
		const ssize_t n = process_vm_readv(getpid(), &own, 1, &other, 1, 0);
		if (n <= 0)
			return false;
		own = (struct iovec){(char *)own.iov_base + n, own.iov_len - (size_t)n};
		other = (struct iovec){(char *)other.iov_base + n, other.iov_len - (size_t)n};
	}
	return true;
}

bool hami_swap_file_read(void *to, const char *from, size_t bytes)
{
	return copy(to, from, bytes);
}

bool hami_swap_file_write(char *to, const void *from, size_t bytes)
{
	char bounce[BOUNCE]; /* libcuda's page-locked memory may be a device's */
	for (size_t at = 0, part; at < bytes; at += part) {
		part = bytes - at < BOUNCE ? bytes - at : BOUNCE;
		memcpy(bounce, (const char *)from + at, part);
		if (!copy(to + at, bounce, part)) {
			complain(strerror(errno == EFAULT ? EIO : errno));
			return false;
		}
	}
	return true;
}

char *hami_swap_file_map(size_t bytes)
{
	const int fd = open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	char *file = NULL;
	if (fd >= 0 && !fallocate(fd, 0, 0, (off_t)bytes))
		file = hami_map(bytes, MAP_SHARED, fd);
	if (!file)
		complain(strerror(errno));
	if (fd >= 0)
		close(fd);
	return file;
}

bool hami_swap_file_intact(char *file)
{
	return !msync(file, (size_t)sysconf(_SC_PAGESIZE),
		      MS_SYNC); /* of any page: the error is the file's */
}
