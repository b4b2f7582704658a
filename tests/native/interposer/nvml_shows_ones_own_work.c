/* SPDX-License-Identifier: Apache-2.0 */
/* Utilisation inside a job is the job's own: no samples of other processes, and never more than the GPU's. */
#include <nvml.h>
#include <time.h>

#include "check.h"

int main(void)
{
	nvmlDevice_t device;
	nvmlUtilization_t rates;
	nvmlProcessUtilizationSample_t samples[256];
	unsigned int count = 0;
	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	start();
	CHECK(nvmlDeviceGetProcessUtilization(device, NULL, &count, 0) == NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(count > 0 && count <= sizeof samples / sizeof *samples);
	nvmlReturn_t result = nvmlDeviceGetProcessUtilization(device, samples, &count,
							      ((unsigned long long)time(NULL) - 2) * 1000000);
	CHECK(result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND || result == NVML_ERROR_NOT_SUPPORTED);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++)
		CHECK(samples[i].pid == (unsigned int)getpid());
	CHECK(nvmlDeviceGetUtilizationRates(device, &rates) == NVML_SUCCESS);
	CHECK(rates.gpu <= 100 && rates.memory <= 100);
	if (getenv("EXPECT_IDLE"))
		CHECK(rates.gpu == 0);
	return 0;
}
