/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a job's records: what is mapped, after what checks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region.h"

/* Root's files appear as this user's inside a user namespace that does not map root. */
static uid_t overflow_uid(void)
{
	char text[16] = "";
	int fd = open("/proc/sys/kernel/overflowuid", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 65534;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	return n > 0 ? (uid_t)strtoul(text, NULL, 10) : 65534;
}

static int map_limits(const char *path, const struct hami_limits **out)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	int rc = 0;
	void *map = MAP_FAILED;
	if (fstat(fd, &st))
		rc = -errno;
	else if (!S_ISREG(st.st_mode) || (st.st_mode & 022) ||
		 (st.st_uid != 0 && st.st_uid != overflow_uid()))
		rc = -EPERM;
	else if (st.st_size != (off_t)sizeof(struct hami_limits))
		rc = -EPROTO;
	else if ((map = mmap(NULL, sizeof(struct hami_limits), PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
		rc = -errno;
	close(fd);
	if (rc)
		return rc;
	const struct hami_limits *limits = map;
	if (limits->magic != HAMI_LIMITS_MAGIC || limits->abi_version != HAMI_ABI_VERSION ||
	    limits->record_size != sizeof *limits || !memchr(limits->gpu_uuid, 0, sizeof limits->gpu_uuid)) {
		munmap(map, sizeof *limits);
		return -EPROTO;
	}
	*out = limits;
	return 0;
}

static int map_usage(struct hami_region *region)
{
	struct stat st;
	int fd = open(region->usage_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	int rc = -EPROTO;
	void *map = MAP_FAILED;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof *region->usage)
		goto fail;
	map = mmap(NULL, sizeof *region->usage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		rc = -errno;
		goto fail;
	}
	const struct hami_usage *head = map;
	if (head->magic != HAMI_USAGE_MAGIC || head->abi_version != HAMI_ABI_VERSION ||
	    head->slot_count != HAMI_USAGE_SLOT_COUNT)
		goto fail;
	region->usage = map;
	region->fd = fd;
	return 0;
fail:
	if (map != MAP_FAILED)
		munmap(map, sizeof *region->usage);
	close(fd);
	return rc;
}

int hami_region_open(struct hami_region *region, const char *limits_path)
{
	*region = (struct hami_region){.fd = -1, .slot = -1, .join = PTHREAD_MUTEX_INITIALIZER};
	const char *slash = strrchr(limits_path, '/');
	if (!slash)
		return -EINVAL;
	int dir_length = (int)(slash - limits_path);
	char job_path[sizeof region->usage_path];
	int n = snprintf(job_path, sizeof job_path, "%.*s/" HAMI_FILE_JOB_LIMITS, dir_length, limits_path);
	int m = snprintf(region->usage_path, sizeof region->usage_path, "%.*s/" HAMI_FILE_USAGE, dir_length,
			 limits_path);
	if (n >= (int)sizeof job_path || m >= (int)sizeof region->usage_path)
		return -ENAMETOOLONG;
	int rc = map_limits(job_path, &region->job);
	if (rc)
		return rc;
	rc = map_limits(limits_path, &region->step);
	if (!rc && (region->step->job_id != region->job->job_id ||
		    strcmp(region->step->gpu_uuid, region->job->gpu_uuid) != 0))
		rc = -EPROTO;
	if (!rc)
		rc = map_usage(region);
	if (rc)
		region->job = region->step = NULL; /* the maps stay: a failed open ends in a refused cuInit */
	return rc;
}
