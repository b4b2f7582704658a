/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, and the processes that hold it. */
#include "sim_nvml.h"

static uint64_t used_bytes(uint32_t gpu)
{
	sim_lock(&nvml.view);
	nvml_sweep();
	uint64_t used = nvml.view.state->gpu[gpu].used_bytes;
	sim_unlock(&nvml.view);
	return used;
}

/* Version 1 counts what the driver keeps for itself as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	NVML_ENTER_DEVICE(device, memory);
	memory->total = sim_mib(device->model->total_mib);
	memory->used = used_bytes(device->index) + sim_mib(device->model->reserved_mib);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	NVML_ENTER_DEVICE(device, memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = sim_mib(device->model->total_mib);
	memory->reserved = sim_mib(device->model->reserved_mib);
	memory->used = used_bytes(device->index);
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
		if (!share->contexts && !share->used_bytes)
			continue;
		if (processes < room && v1)
			v1[processes] = (nvmlProcessInfo_v1_t){.pid = (unsigned)s->slot[i].pid,
							       .usedGpuMemory = share->used_bytes};
		else if (processes < room)
			v2[processes] = (nvmlProcessInfo_v2_t){.pid = (unsigned)s->slot[i].pid,
							       .usedGpuMemory = share->used_bytes,
							       .gpuInstanceId = UINT32_MAX,
							       .computeInstanceId = UINT32_MAX};
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
