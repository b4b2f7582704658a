/* SPDX-License-Identifier: Apache-2.0 */
/* Each device has its own limit, exact, whatever is on the others; sizes are those of the device that is asked about. */
#include <nvml.h>

#include "several.h"

#define MOST_PIECES 4096
#define PIECE (16 * MIB)

static CUdeviceptr pieces[MOST_DEVICES][MOST_PIECES];

static nvmlDevice_t nvml_device(int device)
{
	CUuuid uuid;
	char text[64] = "GPU-";
	nvmlDevice_t out;
	OK(cuDeviceGetUuid_v2(&uuid, device));
	for (int i = 0; i < 16; i++)
		sprintf(text + strlen(text), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			(unsigned char)uuid.bytes[i]);
	CHECK(nvmlDeviceGetHandleByUUID(text, &out) == NVML_SUCCESS);
	return out;
}

static void sizes_are_the_slices(int device)
{
	size_t total, left;
	nvmlMemory_t memory;
	nvmlProcessInfo_t processes[64];
	unsigned int count = 64;
	OK(cuDeviceTotalMem(&total, device));
	CHECK(total == limits[device]);
	OK(cuCtxSetCurrent(contexts[device]));
	OK(cuMemGetInfo(&left, &total));
	CHECK(total == limits[device]);
	CHECK(nvmlDeviceGetMemoryInfo(nvml_device(device), &memory) == NVML_SUCCESS);
	CHECK(memory.total == limits[device] && memory.free == left && memory.used == memory.total - left);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(nvml_device(device), &count, processes) ==
	      NVML_SUCCESS);
	CHECK(count == 1 && processes[0].pid == (unsigned int)getpid());
	CHECK(processes[0].usedGpuMemory == memory.used);
}

/* Fills a device, from whatever context was current; returns how many pieces fitted. */
static int fill_device(int device)
{
	int count = 0;
	CUresult result;
	size_t others[MOST_DEVICES];
	for (int i = 0; i < device_count; i++)
		others[i] = limits[i] ? free_on(i) : 0;
	OK(cuCtxSetCurrent(contexts[device]));
	while ((result = cuMemAlloc(&pieces[device][count], PIECE)) == CUDA_SUCCESS)
		CHECK(++count < MOST_PIECES);
	CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(free_on(device) < PIECE);
	CHECK(others[device] - free_on(device) == (size_t)count * PIECE);
	for (int i = 0; i < device_count; i++)
		CHECK(i == device || !limits[i] || free_on(i) == others[i]);
	return count;
}

static void empty_device(int device, int count)
{
	for (int i = 0; i < count; i++) /* with another device's context current */
		OK(cuMemFree(pieces[device][i]));
}

/* Memory that needs no context there. */
static void of_others_there_is_none(int device)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 64 * MIB, &p, 0));
}

int main(void)
{
	int counts[MOST_DEVICES] = {0};
	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	open_all();
	for (int i = 0; i < device_count && device_count > 2; i++)
		if (!limits[i])
			of_others_there_is_none(i);
	for (int round = 0; round < 2; round++) {
		size_t at_first[MOST_DEVICES];
		for (int i = 0; i < device_count; i++)
			at_first[i] = limits[i] ? free_on(i) : 0;
		for (int i = 0; i < device_count; i++)
			if (limits[i]) {
				sizes_are_the_slices(i);
				counts[i] = fill_device(i);
				sizes_are_the_slices(i);
			}
		for (int i = device_count - 1; i >= 0; i--) /* each without the others */
			if (limits[i]) {
				empty_device(i, counts[i]);
				CHECK(free_on(i) == at_first[i]);
			}
	}
	return 0;
}
