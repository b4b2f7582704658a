/* SPDX-License-Identifier: Apache-2.0 */
/* MIG's compute instances: parts of a GPU instance's compute slices. Their ids are where no other is. */
#include "sim_nvml.h"

#include <stdio.h>
#include <string.h>

static struct nvmlComputeInstance_st handles[SIM_MAX_GPUS][SIM_MIG_INSTANCES][SIM_MIG_SLICES];

/* Slices of each profile, by NVML's number, which is also its id within the GPU instance. */
static const uint32_t slices_of[] = {[NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1,
				     [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
				     [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3,
				     [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
				     [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7};
enum { PROFILES = sizeof slices_of / sizeof *slices_of };

static nvmlComputeInstance_t handle_of(nvmlGpuInstance_t parent, uint32_t id)
{
	struct nvmlComputeInstance_st *handle = &handles[parent->gpu][parent->id][id];
	*handle = (struct nvmlComputeInstance_st){parent, id, parent->serial};
	return handle;
}

/* The profile of the GPU instance, and whether a compute instance may have the numbered profile in it. */
static nvmlReturn_t enter_profile(const char *function, nvmlGpuInstance_t parent, unsigned int number,
				  const void *out, const struct sim_mig_profile **profile)
{
	nvmlReturn_t result = nvml_enter_instance(function, parent);
	if (result != NVML_SUCCESS)
		return result;
	if (!out || number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(&nvml.view);
	*profile = sim_mig_profile_of(&nvml.view, parent->gpu, parent->id);
	sim_unlock(&nvml.view);
	return number < PROFILES && slices_of[number] <= sim_mig_slices(*profile) ? NVML_SUCCESS
										  : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t fill_profile(const char *function, nvmlGpuInstance_t parent, unsigned int number,
				 unsigned int engines, nvmlComputeInstanceProfileInfo_v2_t *info)
{
	const struct sim_mig_profile *p;
	nvmlReturn_t result = enter_profile(function, parent, number, info, &p);
	if (result != NVML_SUCCESS)
		return result;
	if (engines != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint32_t slices = slices_of[number], all = sim_mig_slices(p);
	*info = (nvmlComputeInstanceProfileInfo_v2_t){.version = nvmlComputeInstanceProfileInfo_v2,
						      .id = number,
						      .sliceCount = slices,
						      .instanceCount = all / slices,
						      .multiprocessorCount = p->sm_count * slices / all,
						      .sharedCopyEngineCount = all};
	if (slices == all)
		snprintf(info->name, sizeof info->name, "MIG %s", p->name);
	else
		snprintf(info->name, sizeof info->name, "MIG %uc.%s", slices, p->name);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t parent, unsigned int number,
							   unsigned int engines,
							   nvmlComputeInstanceProfileInfo_v2_t *info)
{
	if (info && info->version != nvmlComputeInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return fill_profile(__func__, parent, number, engines, info);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t parent, unsigned int number,
							  unsigned int engines,
							  nvmlComputeInstanceProfileInfo_t *info)
{
	nvmlComputeInstanceProfileInfo_v2_t v2;
	nvmlReturn_t result = fill_profile(__func__, parent, number, engines, info ? &v2 : NULL);
	if (result == NVML_SUCCESS)
		*info = (nvmlComputeInstanceProfileInfo_t){.id = v2.id,
							   .sliceCount = v2.sliceCount,
							   .instanceCount = v2.instanceCount,
							   .multiprocessorCount = v2.multiprocessorCount,
							   .sharedCopyEngineCount = v2.sharedCopyEngineCount};
	return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t parent, unsigned int number,
						  nvmlComputeInstance_t *instance)
{
	const struct sim_mig_profile *p;
	nvmlReturn_t result = enter_profile(__func__, parent, number, instance, &p);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	int id = sim_mig_create_compute(&nvml.view, parent->gpu, parent->id, slices_of[number]);
	if (id >= 0)
		*instance = handle_of(parent, (uint32_t)id);
	sim_unlock(&nvml.view);
	return nvml_mig_error(id);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t parent, unsigned int number,
						nvmlComputeInstance_t *instances, unsigned int *count)
{
	const struct sim_mig_profile *p;
	uint32_t found = 0;
	nvmlReturn_t result = enter_profile(__func__, parent, number, instances ? count : NULL, &p);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	const struct sim_mig_instance *one = &nvml.view.state->gpu[parent->gpu].mig[parent->id];
	for (uint32_t ci = 0; ci < SIM_MIG_SLICES; ci++)
		if (one->compute_slices[ci] == slices_of[number])
			instances[found++] = handle_of(parent, ci);
	sim_unlock(&nvml.view);
	*count = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t parent, unsigned int id,
						   nvmlComputeInstance_t *instance)
{
	nvmlReturn_t result = nvml_enter_instance(__func__, parent);
	if (result != NVML_SUCCESS || !instance)
		return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
	sim_lock(&nvml.view);
	if (id < SIM_MIG_SLICES && nvml.view.state->gpu[parent->gpu].mig[parent->id].compute_slices[id])
		*instance = handle_of(parent, id);
	else
		result = NVML_ERROR_NOT_FOUND;
	sim_unlock(&nvml.view);
	return result;
}

/* Enters for a compute instance that exists. */
static nvmlReturn_t enter_compute(const char *function, nvmlComputeInstance_t instance, uint32_t *slices)
{
	nvmlReturn_t result = nvml_enter(function);
	if (result != NVML_SUCCESS)
		return result;
	if (!instance || !instance->parent || instance->serial != instance->parent->serial)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_enter_instance(function, instance->parent);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	*slices = nvml.view.state->gpu[instance->parent->gpu]
			  .mig[instance->parent->id]
			  .compute_slices[instance->id];
	sim_unlock(&nvml.view);
	return *slices ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
	uint32_t slices, number = 0;
	nvmlReturn_t result = enter_compute(__func__, instance, &slices);
	if (result != NVML_SUCCESS || !info)
		return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
	while (number < PROFILES && slices_of[number] != slices)
		number++;
	*info = (nvmlComputeInstanceInfo_t){.device = &nvml.device[instance->parent->gpu],
					    .gpuInstance = instance->parent,
					    .id = instance->id,
					    .profileId = number,
					    .placement = {instance->id, slices}};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
	uint32_t slices;
	nvmlReturn_t result = enter_compute(__func__, instance, &slices);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	int rc = sim_mig_destroy_compute(&nvml.view, instance->parent->gpu, instance->parent->id,
					 instance->id);
	sim_unlock(&nvml.view);
	return nvml_mig_error(rc);
}
