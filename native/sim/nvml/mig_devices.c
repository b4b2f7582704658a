/* SPDX-License-Identifier: Apache-2.0 */
/* MIG devices: the handles by which programs see compute instances. */
#include "sim_nvml.h"

uint32_t nvml_gpu_of_mig(nvmlDevice_t device)
{
	for (uint32_t gpu = 0; gpu < nvml.view.machine.gpu_count; gpu++)
		if (device >= nvml.mig[gpu] && device < nvml.mig[gpu + 1] && device->mig)
			return gpu;
	return SIM_MAX_GPUS;
}

nvmlDevice_t nvml_mig_device(uint32_t gpu, uint32_t mig)
{
	struct nvmlDevice_st *handle = &nvml.mig[gpu][mig - 1];
	*handle = (struct nvmlDevice_st){gpu, &nvml.view.machine.gpu[gpu], mig,
					 nvml.view.state->gpu[gpu].mig[sim_mig_gi(mig)].serial};
	return handle;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	NVML_ENTER_DEVICE(device, is_mig);
	*is_mig = device->mig != 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	NVML_ENTER_DEVICE(device, count);
	*count = device->model->mig_count ? NVML_MIG_DEVICES : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	NVML_ENTER_DEVICE(device, mig);
	if (!device->model->mig_count)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= NVML_MIG_DEVICES || device->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = NVML_ERROR_NOT_FOUND;
	sim_lock(&nvml.view);
	for (uint32_t one = 1; result != NVML_SUCCESS && one <= SIM_MIG_INSTANCES * SIM_MIG_SLICES; one++)
		if (sim_mig_exists(&nvml.view, device->index, one, 0) && !index--) {
			*mig = nvml_mig_device(device->index, one);
			result = NVML_SUCCESS;
		}
	sim_unlock(&nvml.view);
	return result;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	NVML_ENTER_DEVICE(mig, device);
	if (!mig->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &nvml.device[mig->index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_ENTER_DEVICE(device, id);
	if (!device->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = sim_mig_gi(device->mig);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_ENTER_DEVICE(device, id);
	if (!device->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = sim_mig_ci(device->mig);
	return NVML_SUCCESS;
}

/* The size of a MIG device; for a GPU as one answers while MIG is off. */
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	NVML_ENTER_DEVICE(device, attributes);
	if (!device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	uint32_t gi = sim_mig_gi(device->mig);
	sim_lock(&nvml.view);
	const struct sim_mig_profile *p = sim_mig_profile_of(&nvml.view, device->index, gi);
	uint32_t slices = nvml.view.state->gpu[device->index].mig[gi].compute_slices[sim_mig_ci(device->mig)];
	*attributes =
		(nvmlDeviceAttributes_t){.multiprocessorCount = p->sm_count * slices / sim_mig_slices(p),
					 .sharedCopyEngineCount = sim_mig_slices(p),
					 .gpuInstanceSliceCount = sim_mig_slices(p),
					 .computeInstanceSliceCount = slices,
					 .memorySizeMB = p->memory_mib};
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}
