// SPDX-License-Identifier: GPL-2.0-or-later
/* Any bytes as a job's record: whatever is accepted has only values that the rest of the plugin may use. */
#include <stdint.h>

#include "check.h"
#include "decide.h"
#include "record.h"

enum { JOB = 0x01010101, USER = 0x02020202 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct step_units units = {.shards = true, .mem = true, .cores = true};
	struct hami_limits job = {.magic = HAMI_LIMITS_MAGIC, .abi_version = HAMI_ABI_VERSION}, step;
	uint64_t asked_bytes, asked_percent;
	size_t at, n;

	/* The first byte says how much of the head is right already, so that the depths are reached. */
	if (size < 1)
		return 0;
	job.record_size = sizeof(job);
	job.job_id = JOB;
	job.step_id = HAMI_JOB_STEP_ID;
	job.uid = USER;
	at = data[0] % sizeof(job);
	n = size - 1 < sizeof(job) - at ? size - 1 : sizeof(job) - at;
	memcpy((char *)&job + at, data + 1, n);
	if (record_check(&job, JOB, USER) != RECORD_OK)
		return 0;
	CHECK(*job.class_name && strlen(job.class_name) < sizeof(job.class_name));
	CHECK(job.class_priority <= HAMI_CLASS_PRIORITY_MAX && job.slice_us <= HAMI_CLASS_SLICE_US_MAX);
	CHECK(strlen(job.gpu_uuid) < sizeof(job.gpu_uuid));
	CHECK(record_slice_count(&job) >= 1 && record_slice_count(&job) <= RECORD_SLICES_MAX);
	units.vgpu = job.sequence % 2 == 0;
	units.slices = job.created_unix_ns;
	units.mem_mib = job.mem_limit_bytes ^ job.created_unix_ns;
	units.cores_percent = job.gpu_total_bytes;
	step_limits(&job, &units, STEP_FENCED, 1, 0, &step);
	asked_bytes = job.asked_mem_bytes ? job.asked_mem_bytes : job.mem_limit_bytes;
	asked_percent = job.asked_mem_bytes ? job.asked_cores_percent : job.cores_percent;
	if (job.mode == HAMI_MODE_SHARE) { /* a limit of its own, or none: the job's record holds as well */
		CHECK(step.mem_limit_bytes < asked_bytes || step.mem_limit_bytes == UINT64_MAX);
		CHECK(step.cores_percent < asked_percent || step.cores_percent == 100);
	} else {
		CHECK(step.mem_limit_bytes <= asked_bytes && step.cores_percent <= asked_percent);
	}
	CHECK(!step.asked_mem_bytes && !step.most_mem_bytes && !step.asked_cores_percent);
	return 0;
}
