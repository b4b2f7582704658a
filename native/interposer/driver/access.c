/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/access.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secure.h"
#include "base/uuid.h"
#include "region/process.h"

static struct {
	_Atomic(const struct real_cuda *) cuda; /* what hami_cuda() returns once limits are in force */
	_Atomic CUdevice devices[HAMI_SLICES];  /* of the slices that are visible */
	_Atomic uint32_t visible;               /* mask of slices; 0 until cuInit has found them */
	_Atomic pid_t found_by;                 /* a forked child may see others; 0: none was found */
} driver;

/*
 * Returns whether the driver has the functions that hooks call without a check: every supported driver does.
 * For newer functions a hook looks at the pointer first.
 */
static bool complete(const struct real_cuda *real)
{
	return real->cuInit && real->cuDeviceGet && real->cuDeviceGetCount && real->cuDeviceGetUuid_v2 &&
	       real->cuDeviceTotalMem_v2 && real->cuDevicePrimaryCtxRetain &&
	       real->cuDevicePrimaryCtxRelease_v2 && real->cuCtxGetCurrent && real->cuCtxGetDevice &&
	       real->cuCtxDestroy_v2 && real->cuMemGetInfo_v2 && real->cuMemAllocManaged &&
	       real->cuMemFree_v2 && real->cuStreamIsCapturing && real->cuEventCreate &&
	       real->cuEventRecord && real->cuEventSynchronize && real->cuEventElapsedTime;
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

/* Returns the slice on the GPU of this UUID, or -1. */
static int find_slice(const CUuuid *uuid)
{
	unsigned char bytes[HAMI_UUID_BYTES];
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (hami_uuid_read(hami_slice_uuid(i), bytes) &&
		    memcmp(bytes, uuid->bytes, sizeof bytes) == 0)
			return (int)i;
	return -1;
}

void hami_find_devices(const struct real_cuda *real)
{
	int count = 0;
	uint32_t visible = 0;
	if (driver.found_by == getpid() || hami_is_secure() || !real->cuDeviceGetUuid_v2 ||
	    real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < count; i++) {
		CUdevice device;
		CUuuid uuid;
		int slice = real->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
					    real->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS
				    ? find_slice(&uuid)
				    : -1;
		if (slice < 0)
			continue;
		driver.devices[slice] = device;
		visible |= 1u << slice;
	}
	driver.visible = visible;
	driver.found_by = visible ? getpid() : 0;
	if (!visible && count > 0)
		hami_log(0,
			 "the GPU of this job, %s%s, is not among the %d that CUDA shows here; "
			 "check CUDA_VISIBLE_DEVICES\n",
			 hami_slice_uuid(0), hami_slice_count() > 1 ? " or one of its others" : "", count);
}

int hami_slice_of_device(CUdevice device)
{
	uint32_t visible = driver.visible;
	for (int i = 0; visible >> i; i++)
		if (visible >> i & 1 && driver.devices[i] == device)
			return i;
	return -1;
}

CUdevice hami_device_of_slice(unsigned int slice)
{
	return driver.devices[slice];
}

int hami_current_slice(const struct real_cuda *real)
{
	CUdevice device;
	if (hami_slice_count() == 1)
		return 0;
	return real->cuCtxGetDevice(&device) == CUDA_SUCCESS ? hami_slice_of_device(device) : -1;
}

uint32_t hami_visible_slices(void)
{
	return driver.visible;
}
