/* SPDX-License-Identifier: Apache-2.0 */
/* A step with a part of a MIG instance: what CUDA and NVML show of the instance is the part, of the GPU nothing else. */
#include <nvml.h>
#include <string.h>

#include "check.h"

int main(void)
{
	nvmlDevice_t gpu, instance;
	nvmlMemory_t memory, whole;
	nvmlProcessInfo_t processes[8];
	unsigned int count = 8;
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	CUdeviceptr a;
	size_t total;
	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &gpu) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &instance) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetUUID(instance, uuid, sizeof uuid) == NVML_SUCCESS);
	CHECK(strcmp(uuid, getenv("CUDA_VISIBLE_DEVICES")) == 0);
	CHECK(nvmlDeviceGetMemoryInfo(instance, &memory) == NVML_SUCCESS);
	CHECK(memory.total == limit_bytes());
	CUdevice device = start();
	OK(cuDeviceTotalMem(&total, device));
	CHECK(total == limit_bytes());
	OK(cuMemAlloc(&a, 100 * MIB));
	CHECK(nvmlDeviceGetMemoryInfo(instance, &memory) == NVML_SUCCESS);
	CHECK(memory.total == limit_bytes() && memory.free == free_bytes() && memory.used >= 100 * MIB);
	CHECK(nvmlDeviceGetMemoryInfo(gpu, &whole) == NVML_SUCCESS);
	CHECK(whole.total > memory.total); /* the GPU itself is not the step's */
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(instance, &count, processes) == NVML_SUCCESS);
	CHECK(count == 1 && processes[0].pid == (unsigned int)getpid());
	return 0;
}
