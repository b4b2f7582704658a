/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/access.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/secure.h"
#include "region/process.h"

static struct {
	_Atomic(const struct real_cuda *) cuda; /* what hami_cuda() returns once limits are in force */
	_Atomic int granted_device;             /* -1 until cuInit has found it */
} driver = {.granted_device = -1};

/*
 * Returns whether the driver has the functions that hooks call without a check: every supported driver does.
 * For newer functions a hook looks at the pointer first.
 */
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
	const struct real_cuda *ready = __atomic_load_n(&driver.cuda, __ATOMIC_ACQUIRE);
	if (__builtin_expect(ready != NULL, 1))
		return ready;
	if (!hami_region() && !hami_is_secure())
		return NULL;
	ready = hami_resolve_cuda();
	if (!ready || !complete(ready))
		return NULL;
	__atomic_store_n(&driver.cuda, ready, __ATOMIC_RELEASE);
	return ready;
}

/* Compares "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427" or "MIG-..." with a CUuuid's 16 bytes. */
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
	if (driver.granted_device >= 0 || hami_is_secure() || !real->cuDeviceGetUuid_v2 ||
	    real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < count; i++) {
		CUdevice device;
		CUuuid uuid;
		if (real->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
		    real->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS &&
		    same_uuid(hami_region()->job->gpu_uuid, &uuid)) {
			driver.granted_device = device;
			return;
		}
	}
	if (count > 0)
		hami_log(0,
			 "the GPU of this job, %s, is not among the %d that CUDA shows here; "
			 "check CUDA_VISIBLE_DEVICES\n",
			 hami_region()->job->gpu_uuid, count);
}

bool hami_device_granted(CUdevice device)
{
	return driver.granted_device == device;
}
