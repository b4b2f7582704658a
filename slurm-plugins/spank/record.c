// SPDX-License-Identifier: GPL-2.0-or-later
#include "record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hami_class_name.h"

enum { STABLE_TRIES = 50, STABLE_PAUSE_NS = 2 * 1000 * 1000 };

const char *record_fault(enum record_fault fault)
{
	switch (fault) {
	case RECORD_OK:
		return "is in order";
	case RECORD_NOT_A_FILE:
		return "is not a regular file";
	case RECORD_OWNER:
		return "does not belong to root";
	case RECORD_WRITABLE:
		return "can be written by others than root";
	case RECORD_SIZE:
		return "has the wrong size";
	case RECORD_MAGIC:
		return "is not a limits record";
	case RECORD_ABI:
		return "is of another version of hami_hpc";
	case RECORD_IDENTITY:
		return "is of another job or user";
	case RECORD_VALUES:
		return "holds values that are out of range";
	case RECORD_UNSTABLE:
		return "is changed all the time";
	}
	return "is damaged";
}

int record_open_dir(const char *run_dir, uint32_t job_id)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/jobs/%u", run_dir, job_id);
	int dir;

	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return dir < 0 ? -errno : dir;
}

uint32_t record_slice_count(const struct hami_limits *limits)
{
	return limits->slice_count ? limits->slice_count : 1;
}

/* Checks the contents of a record of any slice. */
static enum record_fault check_slice(const struct hami_limits *limits, uint32_t job_id, uint32_t uid,
				     uint32_t slice)
{
	static const char *const policies[] = HAMI_POLICY_NAMES;
	static const char *const modes[] = HAMI_MODE_NAMES;

	if (limits->magic != HAMI_LIMITS_MAGIC)
		return RECORD_MAGIC;
	if (limits->abi_version != HAMI_ABI_VERSION)
		return RECORD_ABI;
	if (limits->record_size != sizeof(*limits))
		return RECORD_SIZE;
	if (limits->job_id != job_id || limits->step_id != HAMI_JOB_STEP_ID || limits->uid != uid)
		return RECORD_IDENTITY;
	if (limits->mem_limit_bytes == 0 || limits->cores_percent < 1 || limits->cores_percent > 100 ||
	    limits->latency > 1 || limits->floor_percent > 99 || !hami_is_class_name(limits->class_name) ||
	    limits->class_priority > HAMI_CLASS_PRIORITY_MAX || limits->slice_us > HAMI_CLASS_SLICE_US_MAX ||
	    limits->policy >= sizeof(policies) / sizeof(policies[0]) ||
	    limits->mode >= sizeof(modes) / sizeof(modes[0]) || limits->slice_count > RECORD_SLICES_MAX ||
	    limits->slice_index >= record_slice_count(limits) || limits->asked_cores_percent > 100 ||
	    !limits->asked_mem_bytes != !limits->asked_cores_percent ||
	    !memchr(limits->gpu_uuid, '\0', sizeof(limits->gpu_uuid)))
		return RECORD_VALUES;
	return limits->slice_index == slice ? RECORD_OK : RECORD_IDENTITY;
}

enum record_fault record_check(const struct hami_limits *limits, uint32_t job_id, uint32_t uid)
{
	return check_slice(limits, job_id, uid, 0);
}

static int check_file(int fd, uid_t owner)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return RECORD_NOT_A_FILE;
	if (st.st_uid != owner)
		return RECORD_OWNER;
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return RECORD_WRITABLE;
	if (st.st_size != (off_t)sizeof(struct hami_limits))
		return RECORD_SIZE;
	return 0;
}

/*
 * Reads a record that root may change in place: sequence is odd during a change and differs after it. Where it stays odd
 * all the time, root was killed or stopped during a change: each field is the old or the new one, and both are root's.
 */
static int read_stable(int fd, struct hami_limits *limits)
{
	const struct timespec pause = {0, STABLE_PAUSE_NS};
	const off_t sequence_at = (off_t)offsetof(struct hami_limits, sequence);
	uint64_t sequence, first = 0;
	bool stays = true;

	for (int i = 0; i < STABLE_TRIES; i++) {
		if (i > 0)
			nanosleep(&pause, NULL);
		if (pread(fd, limits, sizeof(*limits), 0) != (ssize_t)sizeof(*limits) ||
		    pread(fd, &sequence, sizeof(sequence), sequence_at) != (ssize_t)sizeof(sequence))
			return RECORD_SIZE;
		if (limits->sequence % 2 == 0 && limits->sequence == sequence)
			return 0;
		first = i ? first : sequence;
		stays = stays && limits->sequence == first && sequence == first;
	}
	return stays ? 0 : RECORD_UNSTABLE;
}

/* Reads the first line of a file that only owner can write. False if there is no such file or no text. */
static bool read_line(int dir, const char *name, uid_t owner, char *text, size_t size)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	ssize_t n = 0;

	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == owner &&
	    !(st.st_mode & (S_IWGRP | S_IWOTH)))
		n = pread(fd, text, size - 1, 0);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return *text;
}

/* Returns whether the job of a folder's name has the SLUID, and if so its id in *job. */
static bool has_sluid(const char *run_dir, const char *name, uid_t owner, const char *sluid, uint32_t *job)
{
	char *end, text[64] = "";
	unsigned long id = strtoul(name, &end, 10);
	int dir;
	bool is_it;

	if (*name < '1' || *name > '9' || *end || id >= UINT32_MAX)
		return false;
	dir = record_open_dir(run_dir, (uint32_t)id);
	if (dir < 0)
		return false; /* it has ended meanwhile */
	is_it = read_line(dir, HAMI_FILE_SLUID, owner, text, sizeof(text)) && strcmp(text, sluid) == 0;
	close(dir);
	if (is_it)
		*job = (uint32_t)id;
	return is_it;
}

int record_find_sluid(const char *run_dir, uid_t owner, const char *sluid, uint32_t *job)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/jobs", run_dir), rc;
	struct dirent *entry;
	DIR *jobs;

	*job = 0;
	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	jobs = opendir(path);
	if (!jobs)
		return errno == ENOENT ? 0 : -errno;
	do {
		errno = 0;
		entry = readdir(jobs);
	} while (entry && !has_sluid(run_dir, entry->d_name, owner, sluid, job));
	rc = entry ? 0 : -errno;
	closedir(jobs);
	return rc;
}

bool record_read_refusal(int dir, uid_t owner, char *text, size_t size)
{
	return read_line(dir, HAMI_FILE_REFUSED, owner, text, size);
}

bool record_read_mps(int dir, uid_t owner, char *text, size_t size)
{
	return read_line(dir, HAMI_FILE_MPS, owner, text, size);
}

bool record_read_partition(const char *pipe, uid_t owner, const struct hami_limits *job, char *text,
			   size_t size)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s.jobs/partition-%u-%llu", pipe, job->job_id,
			 (unsigned long long)job->created_unix_ns);
	size_t length = strnlen(job->gpu_uuid, sizeof(job->gpu_uuid));

	return n > 0 && (size_t)n < sizeof(path) && read_line(AT_FDCWD, path, owner, text, size) &&
	       strlen(text) < size - 1 && length > 0 && strncmp(text, job->gpu_uuid, length) == 0 &&
	       text[length] == '/';
}

bool record_is_whole(int dir, uid_t owner)
{
	char text[1024];

	return read_line(dir, HAMI_FILE_WHOLE, owner, text, sizeof(text));
}

bool record_read_mig(int dir, uid_t owner, char uuid[RECORD_MIG_SIZE])
{
	static const char characters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-";
	char text[1024];
	size_t length;

	if (!read_line(dir, HAMI_FILE_MIG, owner, text, sizeof(text)) || strncmp(text, "MIG-", 4) != 0)
		return false;
	length = strspn(text, characters);
	if (length < 5 || length >= RECORD_MIG_SIZE || (text[length] != ' ' && text[length] != '\0'))
		return false;
	memcpy(uuid, text, length);
	uuid[length] = '\0';
	return true;
}

void record_job_name(char *name, size_t size, uint32_t slice)
{
	if (slice == 0)
		snprintf(name, size, "%s", HAMI_FILE_JOB_LIMITS);
	else
		snprintf(name, size, HAMI_FILE_SLICE_JOB_LIMITS_FORMAT, slice);
}

static int read_record(int dir, uid_t owner, uint32_t job_id, uint32_t uid, uint32_t slice,
		       struct hami_limits *limits)
{
	char name[64];
	int fd, rc;

	record_job_name(name, sizeof(name), slice);
	/* O_NONBLOCK: a FIFO in its place must not block the step. */
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return errno == ELOOP ? RECORD_NOT_A_FILE : -errno;
	rc = check_file(fd, owner);
	if (rc == 0)
		rc = read_stable(fd, limits);
	if (rc == 0)
		rc = (int)check_slice(limits, job_id, uid, slice);
	close(fd);
	return rc;
}

int record_read_job(int dir, uid_t owner, uint32_t job_id, uint32_t uid, struct hami_limits *limits)
{
	return read_record(dir, owner, job_id, uid, 0, limits);
}

int record_read_slice(int dir, uid_t owner, const struct hami_limits *first, uint32_t slice,
		      struct hami_limits *limits)
{
	int rc = read_record(dir, owner, first->job_id, first->uid, slice, limits);

	if (rc == 0 && (limits->created_unix_ns != first->created_unix_ns ||
			limits->slice_count != first->slice_count || limits->mode != first->mode))
		return RECORD_IDENTITY;
	return rc;
}

static int write_all(int fd, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, data, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		size -= (size_t)n;
	}
	return 0;
}

int record_write_file(int dir, const char *name, const void *data, size_t size)
{
	char temporary[NAME_MAX];
	int n = snprintf(temporary, sizeof(temporary), ".%s.%d", name, (int)getpid());
	int fd, rc;

	if (n < 0 || (size_t)n >= sizeof(temporary))
		return -ENAMETOOLONG;
	/* It exists only if a slurmstepd with the same pid was killed. */
	if (unlinkat(dir, temporary, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	rc = write_all(fd, data, size);
	if (rc == 0 && fchmod(fd, 0644) < 0) /* independent of the umask */
		rc = -errno;
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && renameat(dir, temporary, dir, name) < 0)
		rc = -errno;
	if (rc < 0)
		unlinkat(dir, temporary, 0);
	return rc;
}

void record_step_name(char *name, size_t size, uint32_t step_id, uint32_t slice)
{
	if (slice == 0)
		snprintf(name, size, HAMI_FILE_STEP_LIMITS_FORMAT, step_id);
	else
		snprintf(name, size, HAMI_FILE_SLICE_STEP_LIMITS_FORMAT, step_id, slice);
}

int record_write_step(int dir, const struct hami_limits *limits)
{
	char name[64];

	record_step_name(name, sizeof(name), limits->step_id, limits->slice_index);
	return record_write_file(dir, name, limits, sizeof(*limits));
}

void record_note_first_step(int dir, uint64_t unix_ns)
{
	char line[32];
	int n = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)unix_ns);

	if (faccessat(dir, HAMI_FILE_FIRST_STEP, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
		record_write_file(dir, HAMI_FILE_FIRST_STEP, line, (size_t)n);
}

int record_remove_step(int dir, uint32_t step_id, uint32_t slice)
{
	char name[64];

	record_step_name(name, sizeof(name), step_id, slice);
	if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}
