/* SPDX-License-Identifier: Apache-2.0 */
#include "region/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secure.h"
#include "region/record.h"

/* Where SPANK's preload=ldso binds the step's records: a path that the user's environment cannot change. */
#define SELF_LIMITS HAMI_FILE_SELF "/" HAMI_FILE_SELF_LIMITS

#define PLACE " on "

static struct {
	pthread_once_t once;
	unsigned int count; /* of slices; 0: without limits */
	struct hami_region slices[HAMI_SLICES];
	char places[HAMI_SLICES][sizeof PLACE + sizeof((struct hami_limits *)NULL)->gpu_uuid];
} process = {.once = PTHREAD_ONCE_INIT};

static const char *reason(int rc)
{
	switch (rc) {
	case -EPERM:
		return "the record is not root's own, or not of this job and user";
	case -EPROTO:
		return "the record is damaged or of another version of hami_hpc";
	case -EXDEV:
		return "the record is of another slice of the job than its name says";
	case -EEXIST:
		return "the record is of the same GPU as that of another slice";
	default:
		return strerror(-rc);
	}
}

/* Opens the records of one slice; sets *count from those of the first. */
static int open_slice(const char *path, unsigned int slice, unsigned int *count)
{
	struct hami_region *own = &process.slices[slice], *first = &process.slices[0];
	int rc = hami_region_open(own, path, slice);
	if (rc)
		return rc;
	if (!slice)
		*count = own->job->slice_count ? own->job->slice_count : 1;
	for (unsigned int i = 0; i < slice; i++)
		if (strcmp(process.slices[i].job->gpu_uuid, own->job->gpu_uuid) == 0)
			return -EEXIST;
	if (own->job->job_id != first->job->job_id || own->job->uid != first->job->uid ||
	    own->step->step_id != first->step->step_id)
		return -EPERM;
	return own->job->slice_count == first->job->slice_count ? 0 : -EPROTO;
}

static void tell(const char *path, unsigned int slice, int rc)
{
	char which[64] = "";
	if (slice)
		snprintf(which, sizeof which, "slice %u of the job beside ", slice);
	hami_log(0,
		 "the GPU limits %s %s%.256s cannot be read (%s), so the GPU stays closed; "
		 "if the job is still running, tell the administrator: hami-hpc doctor\n",
		 slice ? "of" : "in", which, path, reason(rc));
}

static void read_limits(void)
{
	if (hami_is_secure())
		return;
	const char *path = access(SELF_LIMITS, F_OK) == 0 ? SELF_LIMITS : getenv(HAMI_ENV_LIMITS);
	if (!path) {
		hami_log(0, "this process has the interposer loaded but no limits (" HAMI_ENV_LIMITS
			    " is not set), so the GPU stays closed; run it as a step of a job with "
			    "--gres=vgpu, or unset LD_PRELOAD outside of one\n");
		return;
	}
	unsigned int count = 1;
	for (unsigned int i = 0; i < count; i++) {
		int rc = open_slice(path, i, &count);
		if (rc) {
			tell(path, i, rc);
			return;
		}
	}
	for (unsigned int i = 0; i < count; i++) {
		const struct hami_limits *step = process.slices[i].step;
		if (count > 1)
			snprintf(process.places[i], sizeof process.places[i], PLACE "%s", step->gpu_uuid);
		const struct hami_limits *job = process.slices[i].job;
		uint64_t bytes = step->mem_limit_bytes < job->mem_limit_bytes ? step->mem_limit_bytes
									      : job->mem_limit_bytes;
		hami_log(1, "job %u step %u: %llu MiB, %u %% of %s\n", step->job_id, step->step_id,
			 (unsigned long long)(bytes >> 20),
			 step->cores_percent < job->cores_percent ? step->cores_percent : job->cores_percent,
			 step->gpu_uuid);
	}
	__atomic_store_n(&process.count, count, __ATOMIC_RELEASE);
}

unsigned int hami_slice_count(void)
{
	unsigned int count = __atomic_load_n(&process.count, __ATOMIC_ACQUIRE);
	if (__builtin_expect(count == 0, 0)) {
		pthread_once(&process.once, read_limits);
		count = process.count;
	}
	return count;
}

struct hami_region *hami_region(void)
{
	return hami_slice_count() ? &process.slices[0] : NULL;
}

struct hami_region *hami_slice_region(unsigned int slice)
{
	return &process.slices[slice];
}

const char *hami_slice_uuid(unsigned int slice)
{
	const struct hami_limits *step = process.slices[slice].step;
	return step->mode == HAMI_MODE_MIG ? step->device_uuid : step->gpu_uuid;
}

int hami_slice_of_uuid(const char *uuid)
{
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (strcmp(uuid, hami_slice_uuid(i)) == 0)
			return (int)i;
	return -1;
}

const char *hami_slice_place(unsigned int slice)
{
	return process.places[slice];
}

void hami_process_before_driver(void)
{
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		hami_descriptor(
			&process.slices[i].file); /* if it fails, the first charge tries again and tells */
}

void hami_process_forked(void)
{
	for (unsigned int i = 0; i < process.count; i++)
		hami_region_forget_slot(&process.slices[i]);
}
