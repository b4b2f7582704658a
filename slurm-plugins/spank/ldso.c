// SPDX-License-Identifier: GPL-2.0-or-later
#include "ldso.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container.h"
#include "record.h"

static const char HOST_LIST[] = "/etc/ld.so.preload";
static const char JOB_LIST[] = "ld.so.preload";
#define USE_ENV "or set preload = \"env\" in hami-hpc.toml if that is not possible, and render again"

enum { LIST_MAX = 16384 };

/* Appends the host's list at list[used]. Returns the new length, or -errno; -EFBIG if it does not fit. */
static ssize_t read_host_list(char *list, size_t used, size_t size)
{
	int fd = open(HOST_LIST, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	while ((n = read(fd, list + used, size - used)) > 0)
		used += (size_t)n;
	if (n < 0)
		n = -errno;
	else
		n = used == size ? -EFBIG : (ssize_t)used;
	close(fd);
	return n;
}

/* Makes a directory that only root can write to. Returns 0 or -errno; -EPERM if others could have made it. */
static int make_directory(const char *path)
{
	struct stat st;

	if (mkdir(path, 0755) == 0)
		return chmod(path, 0755) < 0 ? -errno : 0; /* independent of the umask */
	if (errno != EEXIST || lstat(path, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	return st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) ? -EPERM : 0;
}

/* Writes the name of a slice's mount point, in the job's directory, to name. */
static void self_name(char *name, size_t size, uint32_t slice)
{
	if (slice == 0)
		snprintf(name, size, "%s", HAMI_FILE_SELF_LIMITS);
	else
		snprintf(name, size, HAMI_FILE_SELF_SLICE_LIMITS_FORMAT, slice);
}

/*
 * Makes the mount point of the job's directory, and in that directory those of the step's records. The latter
 * are made once and never replaced: replacing a file on which another step's namespace has a mount
 * would remove that mount.
 */
static int make_mount_points(int dir, uint32_t slice_count)
{
	char name[64];
	int fd, rc = make_directory(HAMI_FILE_RUN_DIR);

	if (rc == 0)
		rc = make_directory(HAMI_FILE_SELF);
	if (rc < 0)
		return rc;
	for (uint32_t slice = 0; slice < slice_count; slice++) {
		self_name(name, sizeof(name), slice);
		fd = openat(dir, name, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (fd < 0)
			return -errno;
		close(fd);
	}
	return 0;
}

int ldso_prepare(int dir, const struct options *opt, uint32_t slice_count, char *error, size_t size)
{
	char list[LIST_MAX];
	int n = snprintf(list, sizeof(list), "%s\n", opt->interposer);
	ssize_t length =
		n < 0 || (size_t)n >= sizeof(list) ? -EFBIG : read_host_list(list, (size_t)n, sizeof(list));
	int rc;

	if (length == -ENOENT) {
		snprintf(
			error, size,
			"preload=ldso needs the file %s, which may be empty. Administrator: touch %s, " USE_ENV,
			HOST_LIST, HOST_LIST);
		return -1;
	}
	if (length < 0) {
		snprintf(error, size, "%s cannot be read (%s). Administrator: check it", HOST_LIST,
			 strerror((int)-length));
		return -1;
	}
	rc = record_write_file(dir, JOB_LIST, list, (size_t)length);
	if (rc == 0)
		rc = container_write(dir, opt);
	if (rc == 0)
		rc = make_mount_points(dir, slice_count);
	if (rc < 0) {
		snprintf(error, size,
			 "the files for preload=ldso cannot be written below %s and " HAMI_FILE_SELF
			 " (%s). Administrator: check both",
			 opt->run_dir, strerror(-rc));
		return -1;
	}
	return 0;
}

/* Binds `from` to `to`, with what is mounted below it, such as the job's usage file. */
static int bind(const char *from, const char *to, char *error, size_t size)
{
	if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0)
		return 0;
	snprintf(error, size,
		 "%s cannot be bound to %s (%s). Administrator: check that both exist and that slurmd, or "
		 "sshd for its session, may mount, " USE_ENV,
		 from, to, strerror(errno));
	return -1;
}

int ldso_enter(const struct options *opt, uint32_t job_id, uint32_t step_id, uint32_t slice_count,
	       char *error, size_t size)
{
	char job[PATH_MAX - 64], from[PATH_MAX], to[sizeof(HAMI_FILE_SELF) + 64], name[64];

	if (unshare(CLONE_NEWNS) < 0) {
		snprintf(
			error, size,
			"its mount namespace cannot be made (%s). Administrator: run slurmd, or sshd for its session, as root with "
			"CAP_SYS_ADMIN, " USE_ENV,
			strerror(errno));
		return -1;
	}
	/* Slave: later mounts of the host appear here, but mounts made here do not appear on the host. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) {
		snprintf(
			error, size, "its mounts cannot be separated from the host's (%s). Administrator: %s",
			strerror(errno),
			errno == EINVAL
				? "slurmd's root directory must be a mount point; for a chroot, mount --bind "
				  "DIRECTORY DIRECTORY first, " USE_ENV
				: "run slurmd, or sshd for its session, as root with CAP_SYS_ADMIN, " USE_ENV);
		return -1;
	}
	snprintf(job, sizeof(job), "%s/jobs/%u", opt->run_dir, job_id);
	if (bind(job, HAMI_FILE_SELF, error, size) < 0)
		return -1;
	for (uint32_t slice = 0; slice < slice_count; slice++) {
		record_step_name(name, sizeof(name), step_id, slice);
		snprintf(from, sizeof(from), "%s/%s", job, name);
		self_name(name, sizeof(name), slice);
		snprintf(to, sizeof(to), HAMI_FILE_SELF "/%s", name);
		if (bind(from, to, error, size) < 0)
			return -1;
	}
	snprintf(from, sizeof(from), "%s/%s", job, JOB_LIST);
	return bind(from, HOST_LIST, error, size);
}
