/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, and the processes that hold it. */
#include "sim_nvml.h"

/* What processes hold of a GPU or of the GPU instance of a MIG device, and what they can hold. */
static uint64_t used_bytes(nvmlDevice_t device, uint64_t *total)
{
	const struct sim_view *v = &nvml.view;
	uint32_t gi = device->mig ? sim_mig_gi(device->mig) : 0;
	sim_lock(&nvml.view);
	nvml_sweep();
	uint64_t used =
		device->mig ? sim_mig_used_in(v, device->index, gi) : v->state->gpu[device->index].used_bytes;
	*total = device->mig ? sim_mib(sim_mig_profile_of(v, device->index, gi)->memory_mib)
			     : sim_mib(device->model->total_mib - device->model->reserved_mib);
	sim_unlock(&nvml.view);
	return used;
}

static uint64_t reserved_bytes(nvmlDevice_t device)
{
	return device->mig ? 0 : sim_mib(device->model->reserved_mib);
}

/* Version 1 counts what the driver keeps for itself as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	NVML_ENTER_DEVICE(device, memory);
	uint64_t total;
	memory->used = used_bytes(device, &total) + reserved_bytes(device);
	memory->total = total + reserved_bytes(device);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	NVML_ENTER_DEVICE(device, memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	uint64_t total;
	memory->used = used_bytes(device, &total);
	memory->reserved = reserved_bytes(device);
	memory->total = total + memory->reserved;
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	NVML_ENTER_DEVICE(device, memory);
	memory->bar1Total = sim_mib(262144);
	memory->bar1Used = sim_mib(1);
	memory->bar1Free = memory->bar1Total - memory->bar1Used;
	return NVML_SUCCESS;
}

/*
 * Both forms of an entry, from one walk: one of v1 and v2 is given, or neither when only the count is wanted.
 */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *v1,
				   nvmlProcessInfo_v2_t *v2)
{
	unsigned int room = v1 || v2 ? *count : 0, processes = 0;
	sim_lock(&nvml.view);
	nvml_sweep();
	const struct sim_state *s = nvml.view.state;
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1)) {
		const struct sim_share *share = &s->slot[i].gpu[device->index];
		uint32_t mig = s->slot[i].mig[device->index];
		if ((!share->contexts && !share->used_bytes) || (device->mig && device->mig != mig))
			continue;
		if (processes < room && v1)
			v1[processes] = (nvmlProcessInfo_v1_t){.pid = (unsigned)s->slot[i].pid,
							       .usedGpuMemory = share->used_bytes};
		else if (processes < room)
			v2[processes] = (nvmlProcessInfo_v2_t){
				.pid = (unsigned)s->slot[i].pid,
				.usedGpuMemory = share->used_bytes,
				.gpuInstanceId = mig ? sim_mig_gi(mig) : UINT32_MAX,
				.computeInstanceId = mig ? sim_mig_ci(mig) : UINT32_MAX};
		processes++;
	}
	sim_unlock(&nvml.view);
	*count = processes;
	return processes > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return list_processes(device, count, NULL, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_v2_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return list_processes(device, count, NULL, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
						  nvmlProcessInfo_v1_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return list_processes(device, count, infos, NULL);
}

/* No process draws, and none is a client of MPS. */
static nvmlReturn_t no_processes(unsigned int *count)
{
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						      nvmlProcessInfo_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return no_processes(count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
						      nvmlProcessInfo_v2_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return no_processes(count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
						   nvmlProcessInfo_v1_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return no_processes(count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							nvmlProcessInfo_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return no_processes(count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
							nvmlProcessInfo_v2_t *infos)
{
	NVML_ENTER_DEVICE(device, count && (infos || !*count));
	return no_processes(count);
}
