/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MIG mode, the profiles of GPU instances, and GPU instances. Which error is returned when is nvml.h's text of each
 * function; where it leaves that open, it is said here. No hardware has seen any of it.
 */
#include "sim_nvml.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct nvmlGpuInstance_st handles[SIM_MAX_GPUS][SIM_MIG_INSTANCES];

nvmlReturn_t nvml_enter_mig(const char *function, nvmlDevice_t device)
{
	nvmlReturn_t result = nvml_enter_device(function, device);
	if (result != NVML_SUCCESS)
		return result;
	if (device->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!device->model->mig_count)
		return NVML_ERROR_NOT_SUPPORTED;
	return geteuid() == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvml_mig_error(int rc)
{
	if (rc >= 0)
		return NVML_SUCCESS;
	return rc == -ENOSPC  ? NVML_ERROR_INSUFFICIENT_RESOURCES
	       : rc == -EBUSY ? NVML_ERROR_IN_USE
			      : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	NVML_ENTER_DEVICE(device, current && pending);
	if (!device->model->mig_count || device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	sim_lock(&nvml.view);
	*current = nvml.view.state->gpu[device->index].mig_mode;
	*pending = nvml.view.state->gpu[device->index].mig_pending;
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}

static bool has_instances(const struct sim_gpu *gpu)
{
	for (uint32_t gi = 0; gi < SIM_MIG_INSTANCES; gi++)
		if (gpu->mig[gi].serial)
			return true;
	return false;
}

/*
 * Before Hopper the GPU is reset for it, which waits for the last process: the mode is pending until then
 * (sim-state --restart). From Hopper on nothing is pending. nvml.h does not say what happens to instances when the mode
 * is switched off: here they keep the GPU in use.
 */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
	nvmlReturn_t result = nvml_enter_mig(__func__, device);
	if (result != NVML_SUCCESS)
		return result;
	if (!status || (mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE))
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(&nvml.view);
	struct sim_gpu *gpu = &nvml.view.state->gpu[device->index];
	*status = NVML_SUCCESS;
	if (gpu->mig_mode != mode && (sim_mig_in_use(&nvml.view, device->index) || has_instances(gpu)))
		*status = NVML_ERROR_IN_USE;
	else
		gpu->mig_mode = gpu->mig_pending = mode;
	if (device->model->cc_major < 9)
		gpu->mig_pending = mode;
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}

/* NVML's number of a profile. */
static unsigned number_of(const struct sim_model *m, uint32_t index)
{
	static const unsigned of_slices[] = {[1] = NVML_GPU_INSTANCE_PROFILE_1_SLICE,
					     [2] = NVML_GPU_INSTANCE_PROFILE_2_SLICE,
					     [3] = NVML_GPU_INSTANCE_PROFILE_3_SLICE,
					     [4] = NVML_GPU_INSTANCE_PROFILE_4_SLICE,
					     [7] = NVML_GPU_INSTANCE_PROFILE_7_SLICE};
	const struct sim_mig_profile *p = &m->mig[index];
	uint32_t slices = sim_mig_slices(p);
	if (slices == 1 && p->size == 2)
		return NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2;
	return slices < sizeof of_slices / sizeof *of_slices ? of_slices[slices]
							     : NVML_GPU_INSTANCE_PROFILE_COUNT;
}

static nvmlReturn_t fill_profile(nvmlDevice_t device, unsigned int number,
				 nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct sim_model *m = device->model;
	if (number >= NVML_GPU_INSTANCE_PROFILE_COUNT || device->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < m->mig_count; i++) {
		const struct sim_mig_profile *p = &m->mig[i];
		if (number_of(m, i) != number)
			continue;
		*info = (nvmlGpuInstanceProfileInfo_v2_t){.version = nvmlGpuInstanceProfileInfo_v2,
							  .id = p->id,
							  .sliceCount = sim_mig_slices(p),
							  .instanceCount = p->most,
							  .multiprocessorCount = p->sm_count,
							  .copyEngineCount = sim_mig_slices(p),
							  .memorySizeMB = p->memory_mib};
		snprintf(info->name, sizeof info->name, "MIG %s", p->name);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
						 nvmlGpuInstanceProfileInfo_t *info)
{
	NVML_ENTER_DEVICE(device, info);
	nvmlGpuInstanceProfileInfo_v2_t v2;
	nvmlReturn_t result = fill_profile(device, profile, &v2);
	if (result == NVML_SUCCESS)
		*info = (nvmlGpuInstanceProfileInfo_t){.id = v2.id,
						       .sliceCount = v2.sliceCount,
						       .instanceCount = v2.instanceCount,
						       .multiprocessorCount = v2.multiprocessorCount,
						       .copyEngineCount = v2.copyEngineCount,
						       .memorySizeMB = v2.memorySizeMB};
	return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
						  nvmlGpuInstanceProfileInfo_v2_t *info)
{
	NVML_ENTER_DEVICE(device, info);
	if (info->version != nvmlGpuInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return fill_profile(device, profile, info);
}

/* The index of the model's profile with this id; mig_count when it has none. */
static uint32_t index_of(const struct sim_model *m, unsigned int id)
{
	uint32_t i = 0;
	while (i < m->mig_count && m->mig[i].id != id)
		i++;
	return i;
}

/* Whatever the mode is, as nvml.h says. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
							   nvmlGpuInstancePlacement_t *placements,
							   unsigned int *count)
{
	nvmlReturn_t result = nvml_enter_mig(__func__, device);
	if (result != NVML_SUCCESS)
		return result;
	uint32_t index = index_of(device->model, id), found = 0;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index == device->model->mig_count)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct sim_mig_profile *p = &device->model->mig[index];
	for (unsigned start = 0; start < 32; start++)
		if (p->start_set >> start & 1) {
			if (placements)
				placements[found] = (nvmlGpuInstancePlacement_t){start, p->size};
			found++;
		}
	*count = found;
	return NVML_SUCCESS;
}

/* Of root, for a GPU with MIG on, and one of its profiles. */
static nvmlReturn_t enter_profile(const char *function, nvmlDevice_t device, unsigned int id, const void *out,
				  uint32_t *index)
{
	nvmlReturn_t result = nvml_enter_mig(function, device);
	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = index_of(device->model, id);
	if (nvml.view.state->gpu[device->index].mig_mode != NVML_DEVICE_MIG_ENABLE)
		return NVML_ERROR_NOT_SUPPORTED;
	return *index < device->model->mig_count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
						       unsigned int *count)
{
	uint32_t index, remaining = 0;
	nvmlReturn_t result = enter_profile(__func__, device, id, count, &index);
	if (result != NVML_SUCCESS)
		return result;
	const struct sim_mig_profile *p = &device->model->mig[index];
	sim_lock(&nvml.view);
	for (uint32_t start = 0; start < 32; start++)
		if (sim_mig_fits(&nvml.view, device->index, index, start)) {
			remaining++;
			start += p->size - 1;
		}
	sim_unlock(&nvml.view);
	*count = remaining < p->most ? remaining : p->most;
	return NVML_SUCCESS;
}

static nvmlGpuInstance_t handle_of(uint32_t gpu, uint32_t id)
{
	handles[gpu][id] = (struct nvmlGpuInstance_st){gpu, id, nvml.view.state->gpu[gpu].mig[id].serial};
	return &handles[gpu][id];
}

static nvmlReturn_t create_at(nvmlDevice_t device, uint32_t index, uint32_t start,
			      nvmlGpuInstance_t *instance)
{
	sim_lock(&nvml.view);
	int id = sim_mig_create(&nvml.view, device->index, index, start);
	if (id >= 0)
		*instance = handle_of(device->index, (uint32_t)id);
	sim_unlock(&nvml.view);
	return nvml_mig_error(id);
}

/* At the first placement that fits; the driver's own choice is not documented. */
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
	uint32_t index;
	nvmlReturn_t result = enter_profile(__func__, device, id, instance, &index);
	if (result != NVML_SUCCESS)
		return result;
	result = NVML_ERROR_INSUFFICIENT_RESOURCES;
	for (uint32_t start = 0; start < 32 && result == NVML_ERROR_INSUFFICIENT_RESOURCES; start++)
		result = create_at(device, index, start, instance);
	return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
						      const nvmlGpuInstancePlacement_t *placement,
						      nvmlGpuInstance_t *instance)
{
	uint32_t index;
	nvmlReturn_t result = enter_profile(__func__, device, id, instance, &index);
	if (result != NVML_SUCCESS)
		return result;
	if (!placement || placement->size != device->model->mig[index].size || placement->start >= 32 ||
	    !(device->model->mig[index].start_set >> placement->start & 1))
		return NVML_ERROR_INVALID_ARGUMENT;
	return create_at(device, index, placement->start, instance);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
				       unsigned int *count)
{
	uint32_t index, found = 0;
	nvmlReturn_t result = enter_profile(__func__, device, id, count, &index);
	if (result != NVML_SUCCESS)
		return result;
	if (!instances)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(&nvml.view);
	for (uint32_t gi = 0; gi < SIM_MIG_INSTANCES; gi++) {
		const struct sim_mig_instance *one = &nvml.view.state->gpu[device->index].mig[gi];
		if (one->serial && one->profile == index)
			instances[found++] = handle_of(device->index, gi);
	}
	sim_unlock(&nvml.view);
	*count = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
	nvmlReturn_t result = nvml_enter_mig(__func__, device);
	if (result != NVML_SUCCESS)
		return result;
	if (!instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(&nvml.view);
	if (nvml.view.state->gpu[device->index].mig_mode != NVML_DEVICE_MIG_ENABLE)
		result = NVML_ERROR_NOT_SUPPORTED;
	else if (id >= SIM_MIG_INSTANCES || !nvml.view.state->gpu[device->index].mig[id].serial)
		result = NVML_ERROR_NOT_FOUND;
	else
		*instance = handle_of(device->index, id);
	sim_unlock(&nvml.view);
	return result;
}

nvmlReturn_t nvml_enter_instance(const char *function, nvmlGpuInstance_t instance)
{
	nvmlReturn_t result = nvml_enter(function);
	if (result != NVML_SUCCESS)
		return result;
	if (!instance || !instance->serial)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_enter_mig(function, &nvml.device[instance->gpu]);
	if (result != NVML_SUCCESS)
		return result;
	bool is_same = nvml.view.state->gpu[instance->gpu].mig[instance->id].serial == instance->serial;
	return is_same ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
	nvmlReturn_t result = nvml_enter_instance(__func__, instance);
	if (result != NVML_SUCCESS || !info)
		return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
	sim_lock(&nvml.view);
	const struct sim_mig_instance *one = &nvml.view.state->gpu[instance->gpu].mig[instance->id];
	const struct sim_mig_profile *p = sim_mig_profile_of(&nvml.view, instance->gpu, instance->id);
	*info = (nvmlGpuInstanceInfo_t){.device = &nvml.device[instance->gpu],
					.id = instance->id,
					.profileId = p->id,
					.placement = {one->start, p->size}};
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	nvmlReturn_t result = nvml_enter_instance(__func__, instance);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	int rc = sim_mig_destroy(&nvml.view, instance->gpu, instance->id);
	sim_unlock(&nvml.view);
	return nvml_mig_error(rc);
}
