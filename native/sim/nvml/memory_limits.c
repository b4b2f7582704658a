/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory limits by cgroup. nvml.h of 13.0 does not have them: the structures are those of nvidia-ml-py 13.615. A
 * machine without them (core/memory_limits.h) answers like a driver before r615, as far as a function that exists can.
 */
#include "../core/memory_limits.h"
#include "sim_nvml.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit;
} sim_set_limits_t;

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} sim_get_limits_t;

#pragma GCC visibility push(default)
nvmlReturn_t DECLDIR nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, sim_set_limits_t *limits);
nvmlReturn_t DECLDIR nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, sim_get_limits_t *limits);
#pragma GCC visibility pop

static nvmlReturn_t error_of(int rc)
{
	return rc == 0         ? NVML_SUCCESS
	       : rc == -ENOENT ? NVML_ERROR_NOT_FOUND
	       : rc == -EINVAL ? NVML_ERROR_INVALID_ARGUMENT
			       : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, sim_set_limits_t *limits)
{
	NVML_ENTER_DEVICE(device, limits && limits->nameSpace);
	if (!sim_limits_exist(&nvml.view))
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	sim_lock(&nvml.view);
	int rc = sim_limit_set(&nvml.view, device->index, limits->nameSpace, limits->softLimit,
			       limits->hardLimit);
	sim_unlock(&nvml.view);
	return error_of(rc);
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, sim_get_limits_t *limits)
{
	NVML_ENTER_DEVICE(device, limits && limits->nameSpace);
	if (!sim_limits_exist(&nvml.view))
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	struct sim_limit found;
	sim_lock(&nvml.view);
	nvml_sweep();
	int rc = sim_limit_get(&nvml.view, device->index, limits->nameSpace, &found);
	sim_unlock(&nvml.view);
	if (rc)
		return error_of(rc);
	limits->softLimit = found.soft;
	limits->hardLimit = found.hard;
	limits->currentUsed = found.used;
	return NVML_SUCCESS;
}
