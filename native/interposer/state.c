/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "compute.h"
#include "interposer.h"
#include "resolve.h"

/* Where SPANK's preload=ldso binds the step's records: a path that the user's environment cannot change. */
#define SELF_LIMITS HAMI_FILE_SELF "/" HAMI_FILE_SELF_LIMITS

static struct {
	pthread_once_t once;
	bool limits_ok;
	struct hami_region region;
	_Atomic(const struct real_cuda *) ready; /* what hami_cuda() returns once limits are in force */
	_Atomic int granted_device;              /* -1 until cuInit has found it */
	_Atomic int log_level;                   /* -1 until read */
	_Atomic bool secure_said;
} state = {.once = PTHREAD_ONCE_INIT, .granted_device = -1, .log_level = -1};

bool hami_is_secure(void)
{
	return getauxval(AT_SECURE) != 0;
}

void hami_refuse_secure(void)
{
	if (!atomic_exchange(&state.secure_said, true))
		hami_log(0, "a program with more rights than its user (set-user-ID, set-group-ID or file "
			    "capabilities) gets no GPU in a vGPU job; run a copy of it without them\n");
}

void hami_log(int level, const char *format, ...)
{
	int saved = errno;
	if (state.log_level < 0) {
		const char *text = hami_is_secure() ? NULL : getenv(HAMI_ENV_LOG);
		state.log_level = text ? atoi(text) : 0;
	}
	if (level <= state.log_level) {
		char line[512] = "hami_hpc: ";
		size_t prefix = strlen(line);
		va_list arguments;
		va_start(arguments, format);
		int n = vsnprintf(line + prefix, sizeof line - prefix, format, arguments);
		va_end(arguments);
		size_t length = strlen(line);
		line[length - 1] = '\n'; /* also of one that was too long */
		if (n > 0 && write(STDERR_FILENO, line, length) < 0)
			errno = 0; /* a closed stderr must not fail the application */
	}
	errno = saved;
}

static void forked(void)
{
	if (state.limits_ok)
		hami_region_forked(&state.region);
	hami_compute_forked();
}

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
			    "--gres=vgpu, or "
			    "unset LD_PRELOAD outside of one\n");
		return;
	}
	int rc = hami_region_open(&state.region, path);
	if (rc) {
		hami_log(0,
			 "the GPU limits in %.256s cannot be read (%s), so the GPU stays closed; if the job "
			 "is "
			 "still "
			 "running, tell the administrator: hami-hpc doctor\n",
			 path, reason(rc));
		return;
	}
	state.limits_ok = true;
	pthread_atfork(NULL, NULL, forked);
	const struct hami_limits *step = state.region.step;
	hami_log(1, "job %u step %u: %llu MiB, %u %% of %s\n", step->job_id, step->step_id,
		 (unsigned long long)(step->mem_limit_bytes >> 20), step->cores_percent, step->gpu_uuid);
}

struct hami_region *hami_region(void)
{
	pthread_once(&state.once, read_limits);
	return state.limits_ok ? &state.region : NULL;
}

/* What every driver has that is supported here, and the hooks call without asking. Anything newer is asked
 * for. */
static bool complete(const struct real_cuda *real)
{
	return real->cuInit && real->cuDeviceGet && real->cuDeviceGetCount && real->cuDeviceGetUuid_v2 &&
	       real->cuDeviceTotalMem_v2 && real->cuDevicePrimaryCtxRetain &&
	       real->cuDevicePrimaryCtxRelease_v2 && real->cuCtxGetCurrent && real->cuCtxDestroy_v2 &&
	       real->cuMemGetInfo_v2 && real->cuMemAllocManaged && real->cuMemFree_v2 &&
	       real->cuStreamIsCapturing && real->cuEventCreate && real->cuEventRecord &&
	       real->cuEventSynchronize && real->cuEventElapsedTime;
}

const struct real_cuda *hami_cuda(void)
{
	const struct real_cuda *ready = __atomic_load_n(&state.ready, __ATOMIC_ACQUIRE);
	if (__builtin_expect(ready != NULL, 1))
		return ready;
	if (!hami_region() && !hami_is_secure())
		return NULL;
	ready = hami_resolve_cuda();
	if (!ready || !complete(ready))
		return NULL;
	__atomic_store_n(&state.ready, ready, __ATOMIC_RELEASE);
	return ready;
}

const struct real_nvml *hami_nvml(void)
{
	return hami_resolve_nvml(true);
}

/* "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427" or "MIG-..." against a CUuuid's 16 bytes. */
static bool same_uuid(const char *text, const CUuuid *uuid)
{
	const unsigned char *bytes = (const unsigned char *)uuid->bytes;
	char hex[33];
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	const char *p = strchr(text, '-');
	size_t n = 0;
	for (p = p ? p + 1 : text; *p && n < 32; p++) {
		if (*p == '-')
			continue;
		if ((*p | 0x20) != hex[n])
			return false;
		n++;
	}
	return n == 32 && !*p;
}

void hami_find_device(const struct real_cuda *real)
{
	int count = 0;
	if (state.granted_device >= 0 || hami_is_secure() || !real->cuDeviceGetUuid_v2 ||
	    real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < count; i++) {
		CUdevice device;
		CUuuid uuid;
		if (real->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
		    real->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS &&
		    same_uuid(state.region.job->gpu_uuid, &uuid)) {
			state.granted_device = device;
			return;
		}
	}
	if (count > 0)
		hami_log(0,
			 "the GPU of this job, %s, is not among the %d that CUDA shows here; check "
			 "CUDA_VISIBLE_DEVICES\n",
			 state.region.job->gpu_uuid, count);
}

bool hami_device_granted(CUdevice device)
{
	return state.granted_device == device;
}
