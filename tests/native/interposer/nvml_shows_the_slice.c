/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's memory and process list inside a job: the slice and the job's own processes. */
#include <nvml.h>

#include "check.h"

int main(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	nvmlMemory_v2_t memory_v2 = {.version = nvmlMemory_v2};
	nvmlProcessInfo_t processes[64];
	unsigned int count = 64;
	CUdeviceptr a;
	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS); /* before CUDA, as nvidia-smi does */
	CHECK(memory.total == limit_bytes());
	start();
	OK(cuMemAlloc(&a, 100 * MIB));
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	CHECK(memory.total == limit_bytes() && memory.free == free_bytes());
	CHECK(memory.used + memory.free == memory.total && memory.used >= 100 * MIB);
	CHECK(nvmlDeviceGetMemoryInfo_v2(device, &memory_v2) == NVML_SUCCESS);
	CHECK(memory_v2.total == limit_bytes() && memory_v2.used == memory.used);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes) == NVML_SUCCESS);
	CHECK(count == 1 && processes[0].pid == (unsigned int)getpid());
	CHECK(processes[0].usedGpuMemory == memory.used);
	return 0;
}
