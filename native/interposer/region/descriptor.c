/* SPDX-License-Identifier: Apache-2.0 */
#include "region/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int hami_descriptor_open(const struct hami_descriptor *file)
{
	int fd = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (fd > STDERR_FILENO)
		return fd;
	int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int rc = above < 0 ? -errno : above;
	close(fd);
	return rc;
}

int hami_descriptor_adopt(struct hami_descriptor *file, int fd)
{
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	file->device = st.st_dev;
	file->inode = st.st_ino;
	file->fd = fd;
	return 0;
}

static bool is_of_file(const struct hami_descriptor *file, int fd)
{
	struct stat st;
	return fd >= 0 && !fstat(fd, &st) && st.st_dev == file->device && st.st_ino == file->inode;
}

/* Opens the file again. Maps a page of it for good: the locks that are taken by the descriptor outlive its close. */
static int open_again(const struct hami_descriptor *file)
{
	int fd = hami_descriptor_open(file), rc = 0;
	if (fd < 0)
		return fd;
	if (!is_of_file(file, fd))
		rc = -ESTALE;
	else if (mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		rc = -errno;
	if (rc)
		close(fd);
	return rc ? rc : fd;
}

int hami_descriptor(struct hami_descriptor *file)
{
	int fd = __atomic_load_n(&file->fd, __ATOMIC_ACQUIRE);
	if (is_of_file(file, fd))
		return fd;
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state); /* callers hold locks */
	int fresh = open_again(file);
	pthread_setcancelstate(state, NULL);
	if (fresh < 0 ||
	    __atomic_compare_exchange_n(&file->fd, &fd, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	close(fresh); /* another thread was faster */
	return fd;
}
