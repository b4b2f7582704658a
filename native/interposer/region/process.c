/* SPDX-License-Identifier: Apache-2.0 */
#include "region/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secure.h"
#include "region/record.h"

/* Where SPANK's preload=ldso binds the step's records: a path that the user's environment cannot change. */
#define SELF_LIMITS HAMI_FILE_SELF "/" HAMI_FILE_SELF_LIMITS

static struct {
	pthread_once_t once;
	bool open;
	struct hami_region region;
} process = {.once = PTHREAD_ONCE_INIT};

static const char *reason(int rc)
{
	switch (rc) {
	case -EPERM:
		return "the record is not root's own, or not of this job and user";
	case -EPROTO:
		return "the record is damaged or of another version of hami_hpc";
	default:
		return strerror(-rc);
	}
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
	int rc = hami_region_open(&process.region, path);
	if (rc) {
		hami_log(0,
			 "the GPU limits in %.256s cannot be read (%s), so the GPU stays closed; "
			 "if the job is still running, tell the administrator: hami-hpc doctor\n",
			 path, reason(rc));
		return;
	}
	process.open = true;
	const struct hami_limits *step = process.region.step;
	hami_log(1, "job %u step %u: %llu MiB, %u %% of %s\n", step->job_id, step->step_id,
		 (unsigned long long)(step->mem_limit_bytes >> 20), step->cores_percent, step->gpu_uuid);
}

struct hami_region *hami_region(void)
{
	pthread_once(&process.once, read_limits);
	return process.open ? &process.region : NULL;
}

void hami_process_before_driver(void)
{
	struct hami_region *region = hami_region();
	if (!region)
		return;
	pthread_mutex_lock(&region->join);
	if (region->fd < 0) /* if it fails, the first charge tries again and tells */
		region->fd = open(region->usage_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	pthread_mutex_unlock(&region->join);
}

void hami_process_forked(void)
{
	if (process.open)
		hami_region_forget_slot(&process.region);
}
