/* SPDX-License-Identifier: Apache-2.0 */
#include "region/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MOST_BYTES (4u << 20) /* of a file below /proc */
#define FUSE_MAGIC 0x65735546 /* a file system whose files say what the user's own program lets them say */

/* Reads a file of the kernel's own, whole; NULL when the user has mounted another there. The caller frees. */
static char *read_proc(const char *path)
{
	struct statfs fs;
	size_t used = 0, size = 0;
	char *text = NULL;
	ssize_t n = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return NULL;
	if (!fstatfs(fd, &fs) && fs.f_type == PROC_SUPER_MAGIC) {
		do {
			char *more = realloc(text, size += 4096);
			if (!more)
				break;
			text = more;
			n = read(fd, text + used, size - used - 1);
			used += n > 0 ? (size_t)n : 0;
		} while (n > 0 && size < MOST_BYTES);
	}
	close(fd);
	if (n != 0) {
		free(text);
		return NULL;
	}
	text[used] = '\0';
	return text;
}

/* Finds the outer id of `inside` in a uid_map of lines "INSIDE OUTSIDE LENGTH"; false when there is none. */
static bool outer_id(const char *map, uint32_t inside, uint32_t *outside)
{
	unsigned int first, outer, length;
	int used;
	for (; sscanf(map, " %u %u %u%n", &first, &outer, &length, &used) == 3; map += used) {
		if (inside < first || inside - first >= length)
			continue;
		*outside = outer + (inside - first);
		return true;
	}
	return false;
}

/*
 * The kernel writes the map as this process sees it, so that another process's, mounted over this one's, does
 * not read as the initial namespace's.
 */
int hami_viewer_read(struct hami_viewer *viewer)
{
	unsigned int first, outer, length;
	uint32_t root;
	char *map = read_proc("/proc/self/uid_map"), *overflow = NULL;
	int rc = map ? 0 : -EPERM;
	*viewer = (struct hami_viewer){.uid = getuid()};
	viewer->initial = map && sscanf(map, " %u %u %u", &first, &outer, &length) == 3 && !first && !outer &&
			  length == UINT32_MAX;
	if (map && !viewer->initial) {
		overflow = read_proc("/proc/sys/kernel/overflowuid");
		viewer->shown_root = overflow ? (uid_t)strtoul(overflow, NULL, 10) : 0;
		/* A user whom the map leaves out, or gives the overflow id, sees own files as root's. */
		if (!overflow || getuid() == viewer->shown_root || !outer_id(map, getuid(), &viewer->uid))
			rc = -EPERM;
		viewer->own_root = outer_id(map, 0, &root) && root != viewer->uid;
	}
	free(map);
	free(overflow);
	return rc;
}

/* Returns whether this process may change the file's mode, as its owner always may, whatever is shown. */
static bool is_owner(int fd, mode_t mode)
{
	return fchmod(fd, mode & 07777) == 0 || errno != EPERM;
}

/*
 * Returns whether the file is on a mount that shows other owners than the files have. A user can make one in
 * a user namespace.
 */
static bool on_idmapped_mount(int fd)
{
	struct statx st;
	bool listed = false, idmapped = false;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &st) || !(st.stx_mask & STATX_MNT_ID))
		return false; /* before Linux 5.8, which had no such mounts */
	char *mounts = read_proc("/proc/self/mountinfo"), *rest = mounts;
	for (char *line = mounts ? strsep(&rest, "\n") : NULL; line && !listed; line = strsep(&rest, "\n")) {
		char *end = strstr(line, " - "); /* of what is the mount's own */
		listed = strtoull(line, NULL, 10) == st.stx_mnt_id;
		if (end)
			*end = '\0';
		idmapped = listed && strstr(line, ",idmapped");
	}
	free(mounts);
	return !listed || idmapped;
}

int hami_viewer_trusts(const struct hami_viewer *viewer, int fd)
{
	struct stat st;
	struct statfs fs;
	if (fstat(fd, &st) || fstatfs(fd, &fs) || (st.st_mode & 022) || fs.f_type == FUSE_MAGIC)
		return -EPERM;
	if (st.st_uid != viewer->shown_root && !(viewer->own_root && st.st_uid == 0))
		return -EPERM;
	if (viewer->initial)
		return 0;
	return is_owner(fd, st.st_mode) || on_idmapped_mount(fd) ? -EPERM : 0;
}

/*
 * A namespace in a namespace (podman --userns=keep-id makes one) shows this user's id in the namespace around
 * it, which is as a rule root there. Nothing shows the id outside of both.
 */
bool hami_viewer_is(const struct hami_viewer *viewer, uint32_t uid)
{
	return viewer->uid == uid || viewer->uid == 0 || (viewer->own_root && getuid() == uid);
}
