/* SPDX-License-Identifier: Apache-2.0 */
/* MIG is there and off, and its profiles can be read; switching it on is refused. */
#include "sim_nvml.h"

#include <stdio.h>
#include <string.h>

enum { MIG_DEVICES_MAX = 7 };

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	NVML_ENTER_DEVICE(device, current && pending);
	if (!device->model->mig_count)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = NVML_DEVICE_MIG_DISABLE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
	NVML_ENTER_DEVICE(device, status);
	if (mode == NVML_DEVICE_MIG_DISABLE) {
		*status = NVML_SUCCESS;
		return NVML_SUCCESS;
	}
	*status = NVML_ERROR_NOT_SUPPORTED;
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	NVML_ENTER_DEVICE(device, is_mig);
	*is_mig = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	NVML_ENTER_DEVICE(device, count);
	*count = device->model->mig_count ? MIG_DEVICES_MAX : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	NVML_ENTER_DEVICE(device, mig);
	if (!device->model->mig_count)
		return NVML_ERROR_NOT_SUPPORTED;
	return index < MIG_DEVICES_MAX ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	NVML_ENTER_DEVICE(mig, device);
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_ENTER_DEVICE(device, id);
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_ENTER_DEVICE(device, id);
	return NVML_ERROR_INVALID_ARGUMENT;
}

/* The size of a MIG device or of a whole GPU; ours are whole. */
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	NVML_ENTER_DEVICE(device, attributes);
	return NVML_ERROR_NOT_SUPPORTED; /* as a GPU answers while MIG is off */
}

/* NVML's numbers of the profiles whose names start like this. */
static unsigned profile_number(const char *name)
{
	static const struct {
		char slices;
		unsigned number;
	} first[] = {{'1', NVML_GPU_INSTANCE_PROFILE_1_SLICE},
		     {'2', NVML_GPU_INSTANCE_PROFILE_2_SLICE},
		     {'3', NVML_GPU_INSTANCE_PROFILE_3_SLICE},
		     {'4', NVML_GPU_INSTANCE_PROFILE_4_SLICE},
		     {'7', NVML_GPU_INSTANCE_PROFILE_7_SLICE}};
	for (size_t i = 0; i < sizeof first / sizeof *first; i++)
		if (first[i].slices == *name)
			return first[i].number;
	return NVML_GPU_INSTANCE_PROFILE_COUNT;
}

/* The second profile of one slice has twice the memory and a number of its own. */
static const struct sim_mig_profile *find_profile(const struct sim_model *m, unsigned number,
						  unsigned *slices)
{
	bool one_slice_seen = false;
	for (uint32_t i = 0; i < m->mig_count; i++) {
		unsigned mine = profile_number(m->mig[i].name);
		if (mine == NVML_GPU_INSTANCE_PROFILE_1_SLICE && one_slice_seen)
			mine = NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2;
		one_slice_seen |= mine == NVML_GPU_INSTANCE_PROFILE_1_SLICE;
		if (mine == number) {
			*slices = (unsigned)(m->mig[i].name[0] - '0');
			return &m->mig[i];
		}
	}
	return NULL;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
						 nvmlGpuInstanceProfileInfo_t *info)
{
	NVML_ENTER_DEVICE(device, info);
	if (profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned slices;
	const struct sim_mig_profile *p = find_profile(device->model, profile, &slices);
	if (!p)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof *info);
	info->id = profile;
	info->sliceCount = slices;
	info->instanceCount = MIG_DEVICES_MAX / slices;
	info->multiprocessorCount = p->sm_count;
	info->memorySizeMB = p->memory_mib;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
						  nvmlGpuInstanceProfileInfo_v2_t *info)
{
	NVML_ENTER_DEVICE(device, info);
	if (info->version != nvmlGpuInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlGpuInstanceProfileInfo_t v1;
	nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &v1);
	if (result != NVML_SUCCESS)
		return result;
	unsigned slices;
	const struct sim_mig_profile *p = find_profile(device->model, profile, &slices);
	*info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version,
						  .id = v1.id,
						  .sliceCount = v1.sliceCount,
						  .instanceCount = v1.instanceCount,
						  .multiprocessorCount = v1.multiprocessorCount,
						  .memorySizeMB = v1.memorySizeMB};
	snprintf(info->name, sizeof info->name, "MIG %s", p->name);
	return NVML_SUCCESS;
}
