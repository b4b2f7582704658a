/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/activity.h"

#include <unistd.h>

#include "base/clock.h"
#include "driver/resolve.h"
#include "region/process.h"

/* Finds the slice's GPU in NVML; false when there is no NVML. */
static bool granted_device(const struct real_nvml *nvml, unsigned int slice, nvmlDevice_t *device)
{
	return nvml && nvml->nvmlInit_v2 && nvml->nvmlDeviceGetHandleByUUID &&
	       nvml->nvmlInit_v2() == NVML_SUCCESS &&
	       nvml->nvmlDeviceGetHandleByUUID(hami_slice_uuid(slice), device) == NVML_SUCCESS;
}

bool hami_gpu_used_lately(unsigned int slice)
{
	const struct real_nvml *nvml = hami_resolve_nvml();
	nvmlDevice_t device;
	nvmlUtilization_t whole;
	nvmlProcessUtilizationSample_t samples[256];
	unsigned int count = sizeof samples / sizeof *samples;
	if (!granted_device(nvml, slice, &device))
		return true;
	if (nvml->nvmlDeviceGetUtilizationRates &&
	    nvml->nvmlDeviceGetUtilizationRates(device, &whole) == NVML_SUCCESS && whole.gpu == 0)
		return false;
	if (!nvml->nvmlDeviceGetProcessUtilization)
		return true;
	nvmlReturn_t result =
		nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, hami_clock_nvml_since(2));
	if (result == NVML_ERROR_NOT_FOUND)
		return false; /* nobody's process has a sample */
	if (result != NVML_SUCCESS)
		return true;
	for (unsigned int i = 0; i < count; i++)
		if (samples[i].pid == (unsigned int)getpid())
			return samples[i].smUtil != 0;
	return true; /* not listed: idle, or known to NVML by another number (a PID namespace) */
}
