/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of NVML, which show a job its slices: of the GPU of each, the memory that the job may hold and holds,
 * and the job's own processes. For other GPUs, and in processes without limits, NVML answers for itself.
 */
#include <string.h>

#include "base/clock.h"
#include "driver/resolve.h"
#include "region/process.h"

/* Returns the region of the slice on `device`; NULL when it is the GPU of none. */
static struct hami_region *granted(const struct real_nvml *real, nvmlDevice_t device)
{
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	if (!hami_region() || !real->nvmlDeviceGetUUID ||
	    real->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS)
		return NULL;
	int slice = hami_slice_of_uuid(uuid);
	return slice < 0 ? NULL : hami_slice_region((unsigned int)slice);
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	const struct real_nvml *real = hami_resolve_nvml();
	if (!real || !real->nvmlDeviceGetMemoryInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo(device, memory);
	struct hami_region *region = result == NVML_SUCCESS ? granted(real, device) : NULL;
	if (region) {
		struct hami_view view;
		hami_region_view(region, &view);
		*memory = (nvmlMemory_t){.total = view.limit, .free = view.free, .used = view.used};
	}
	return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	const struct real_nvml *real = hami_resolve_nvml();
	if (!real || !real->nvmlDeviceGetMemoryInfo_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo_v2(device, memory);
	struct hami_region *region = result == NVML_SUCCESS ? granted(real, device) : NULL;
	if (region) {
		struct hami_view view;
		hami_region_view(region, &view);
		memory->total = view.limit;
		memory->reserved = 0; /* the limit is of memory that a program can have */
		memory->free = view.free;
		memory->used = view.used;
	}
	return result;
}

/*
 * Keeps those of the `*count` records that are of the job's processes, and sets their memory to what the
 * job's own account says. A record has `size` bytes, starts with a pid, and has a u64 of memory at
 * `memory_offset`.
 */
static void keep_own(struct hami_region *region, void *records, unsigned int *count, size_t size,
		     size_t memory_offset)
{
	unsigned char *base = records;
	unsigned int kept = 0;
	for (unsigned int i = 0; i < *count; i++) {
		unsigned char *record = base + i * size;
		unsigned int pid;
		memcpy(&pid, record, sizeof pid);
		uint64_t bytes = hami_region_of_pid(region, pid);
		if (bytes == UINT64_MAX)
			continue;
		memcpy(record + memory_offset, &bytes, sizeof bytes);
		memmove(base + kept++ * size, record, size);
	}
	*count = kept;
}

#define OWN_PROCESSES(name, type)                                                                            \
	const struct real_nvml *real = hami_resolve_nvml();                                                  \
	if (!real || !real->name)                                                                            \
		return NVML_ERROR_FUNCTION_NOT_FOUND;                                                        \
	nvmlReturn_t result = real->name(device, count, infos);                                              \
	struct hami_region *region = result == NVML_SUCCESS && infos ? granted(real, device) : NULL;         \
	if (region)                                                                                          \
		keep_own(region, infos, count, sizeof(type), offsetof(type, usedGpuMemory));                 \
	return result

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
							  nvmlProcessInfo_v1_t *infos)
{
	OWN_PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
							     nvmlProcessInfo_v2_t *infos)
{
	OWN_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							     nvmlProcessInfo_t *infos)
{
	OWN_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t);
}

/* Returns, of the samples of all processes, those of the job's. */
nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
						     nvmlProcessUtilizationSample_t *samples,
						     unsigned int *count, unsigned long long since)
{
	const struct real_nvml *real = hami_resolve_nvml();
	if (!real || !real->nvmlDeviceGetProcessUtilization)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real->nvmlDeviceGetProcessUtilization(device, samples, count, since);
	struct hami_region *region = result == NVML_SUCCESS && samples ? granted(real, device) : NULL;
	if (!region)
		return result;
	unsigned int kept = 0;
	for (unsigned int i = 0; i < *count; i++)
		if (hami_region_of_pid(region, samples[i].pid) != UINT64_MAX)
			samples[kept++] = samples[i];
	*count = kept;
	return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/*
 * Returns the utilization by the job's own processes in about the last second; the whole GPU's where NVML
 * does not tell processes apart, and 0 where it does and none of the job's has a sample.
 */
nvmlReturn_t DECLDIR nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	const struct real_nvml *real = hami_resolve_nvml();
	if (!real || !real->nvmlDeviceGetUtilizationRates)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real->nvmlDeviceGetUtilizationRates(device, rates);
	if (result != NVML_SUCCESS || !real->nvmlDeviceGetProcessUtilization || !granted(real, device))
		return result;
	nvmlProcessUtilizationSample_t samples[256];
	unsigned int count = sizeof samples / sizeof *samples, gpu = 0, memory = 0;
	nvmlReturn_t sampled =
		nvmlDeviceGetProcessUtilization(device, samples, &count, hami_clock_nvml_since(1));
	if (sampled != NVML_SUCCESS && sampled != NVML_ERROR_NOT_FOUND)
		return result;
	for (unsigned int i = 0; sampled == NVML_SUCCESS && i < count; i++) {
		gpu += samples[i].smUtil;
		memory += samples[i].memUtil;
	}
	rates->gpu = gpu < rates->gpu ? gpu : rates->gpu;
	rates->memory = memory < rates->memory ? memory : rates->memory;
	return result;
}
