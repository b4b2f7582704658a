/* SPDX-License-Identifier: Apache-2.0 */
#include "region/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/table.h"
#include "region/trust.h"

#define ENDING ".limits" /* of the names of records */

/* Maps the record `name` in directory `dir`; both must be root's. */
static int map_limits(const struct hami_viewer *viewer, int dir, const char *name,
		      const struct hami_limits **out)
{
	struct stat st;
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	void *map = MAP_FAILED;
	int rc = hami_viewer_trusts(viewer, fd);
	if (!rc && fstat(fd, &st))
		rc = -errno;
	else if (!rc && !S_ISREG(st.st_mode))
		rc = -EPERM;
	else if (!rc && st.st_size != (off_t)sizeof(struct hami_limits))
		rc = -EPROTO;
	else if (!rc &&
		 (map = mmap(NULL, sizeof(struct hami_limits), PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
		rc = -errno;
	close(fd);
	if (rc)
		return rc;
	const struct hami_limits *limits = map;
	if (limits->magic != HAMI_LIMITS_MAGIC || limits->abi_version != HAMI_ABI_VERSION ||
	    limits->record_size != sizeof *limits || !memchr(limits->gpu_uuid, 0, sizeof limits->gpu_uuid) ||
	    !memchr(limits->device_uuid, 0, sizeof limits->device_uuid))
		rc = -EPROTO;
	else if (!hami_viewer_is(viewer, limits->uid))
		rc = -EPERM;
	if (rc)
		munmap(map, sizeof *limits);
	else
		*out = limits;
	return rc;
}

static int map_usage(struct hami_region *region)
{
	struct stat st;
	int fd = hami_descriptor_open(&region->file);
	if (fd < 0)
		return fd;
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
	rc = hami_descriptor_adopt(&region->file, fd);
	if (rc)
		goto fail;
	region->usage = map;
	return 0;
fail:
	if (map != MAP_FAILED)
		munmap(map, sizeof *region->usage);
	close(fd);
	return rc;
}

/* Writes the name of a slice's record, of which slice 0's is `name`. */
static int name_of(const char *name, unsigned int slice, char *out, size_t size)
{
	const char *end = strstr(name, ENDING);
	if (slice && (!end || end[sizeof ENDING - 1]))
		return -EINVAL;
	int n = slice ? snprintf(out, size, "%.*s.%u" ENDING, (int)(end - name), name, slice)
		      : snprintf(out, size, "%s", name);
	return n < (int)size ? 0 : -ENAMETOOLONG;
}

/* Maps both limits records of a slice, which must be of one job, and of the one that the directory's name says. */
static int map_records(struct hami_region *region, int dir, const char *directory, const char *name,
		       unsigned int slice)
{
	struct hami_viewer viewer;
	const char *slash = strrchr(directory, '/');
	char number[16], of_job[32], of_step[256];
	int rc = hami_viewer_read(&viewer);
	if (!rc)
		rc = hami_viewer_trusts(&viewer, dir);
	if (!rc)
		rc = name_of(HAMI_FILE_JOB_LIMITS, slice, of_job, sizeof of_job);
	if (!rc)
		rc = name_of(name, slice, of_step, sizeof of_step);
	if (!rc)
		rc = map_limits(&viewer, dir, of_job, &region->job);
	if (!rc)
		rc = map_limits(&viewer, dir, of_step, &region->step);
	if (rc)
		return rc;
	if (region->job->slice_index != slice || region->step->slice_index != slice)
		return -EXDEV;
	if (region->job->slice_count > HAMI_SLICES || (slice && slice >= region->job->slice_count))
		return -EPROTO;
	if (region->step->mode != region->job->mode ||
	    (region->step->mode == HAMI_MODE_MIG && !region->step->device_uuid[0]))
		return -EPROTO;
	if (region->step->job_id != region->job->job_id ||
	    strcmp(region->step->gpu_uuid, region->job->gpu_uuid) != 0)
		return -EPROTO;
	snprintf(number, sizeof number, "%u", region->job->job_id);
	if (strcmp(directory, HAMI_FILE_SELF) != 0 && strcmp(slash ? slash + 1 : directory, number) != 0)
		return -EPERM;
	return 0;
}

int hami_region_open(struct hami_region *region, const char *limits_path, unsigned int slice)
{
	*region = (struct hami_region){.file.fd = -1, .slot = -1, .join = PTHREAD_MUTEX_INITIALIZER};
	const char *slash = strrchr(limits_path, '/');
	if (!slash)
		return -EINVAL;
	char directory[sizeof region->file.path];
	int length = (int)(slash - limits_path);
	int n = slice ? snprintf(region->file.path, sizeof region->file.path,
				 "%.*s/" HAMI_FILE_SLICE_USAGE_FORMAT, length, limits_path, slice)
		      : snprintf(region->file.path, sizeof region->file.path, "%.*s/" HAMI_FILE_USAGE, length,
				 limits_path);
	if (n >= (int)sizeof region->file.path)
		return -ENAMETOOLONG;
	snprintf(directory, sizeof directory, "%.*s", length, limits_path);
	int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	int rc = map_records(region, dir, directory, slash + 1, slice);
	close(dir);
	if (!rc)
		rc = map_usage(region);
	if (rc)
		region->job = region->step = NULL; /* the maps stay: a failed open ends in a refused cuInit */
	return rc;
}
