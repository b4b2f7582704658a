/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this simulated board does not have, or does not tell. The arguments are checked as far as the device
 * goes.
 */
#include "sim_nvml.h"

#define UNSUPPORTED(name, ...)                                                                               \
	nvmlReturn_t name(nvmlDevice_t device __VA_OPT__(, ) __VA_ARGS__)                                    \
	{                                                                                                    \
		nvmlReturn_t result = nvml_enter_device(#name, device);                                      \
		return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;                           \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"

UNSUPPORTED(nvmlDeviceGetFanSpeed, unsigned int *speed)
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2, unsigned int fan, unsigned int *speed)
UNSUPPORTED(nvmlDeviceGetNumFans, unsigned int *count)
UNSUPPORTED(nvmlDeviceGetBoardPartNumber, char *number, unsigned int length)
UNSUPPORTED(nvmlDeviceGetBoardId, unsigned int *id)
UNSUPPORTED(nvmlDeviceGetVbiosVersion, char *version, unsigned int length)
UNSUPPORTED(nvmlDeviceGetGspFirmwareVersion, char *version)
UNSUPPORTED(nvmlDeviceGetInforomImageVersion, char *version, unsigned int length)
UNSUPPORTED(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t type, unsigned int *celsius)
UNSUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int *least, unsigned int *most)
UNSUPPORTED(nvmlDeviceGetApplicationsClock, nvmlClockType_t type, unsigned int *mhz)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization, unsigned int *percent, unsigned int *period_us)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization, unsigned int *percent, unsigned int *period_us)
UNSUPPORTED(nvmlDeviceGetTotalEccErrors, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
	    unsigned long long *count)
UNSUPPORTED(nvmlDeviceGetRetiredPages, nvmlPageRetirementCause_t cause, unsigned int *count,
	    unsigned long long *addresses)
UNSUPPORTED(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t *pending)
UNSUPPORTED(nvmlDeviceGetNvLinkState, unsigned int link, nvmlEnableState_t *active)
UNSUPPORTED(nvmlDeviceGetNvLinkVersion, unsigned int link, unsigned int *version)
UNSUPPORTED(nvmlDeviceGetPcieThroughput, nvmlPcieUtilCounter_t counter, unsigned int *kilobytes)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int *generation)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth, unsigned int *width)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int *generation)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth, unsigned int *width)
UNSUPPORTED(nvmlDeviceGetPcieReplayCounter, unsigned int *count)
UNSUPPORTED(nvmlDeviceGetAccountingMode, nvmlEnableState_t *mode)
UNSUPPORTED(nvmlDeviceGetAccountingStats, unsigned int pid, nvmlAccountingStats_t *stats)
UNSUPPORTED(nvmlDeviceGetAccountingPids, unsigned int *count, unsigned int *pids)
UNSUPPORTED(nvmlDeviceGetGpuOperationMode, nvmlGpuOperationMode_t *current, nvmlGpuOperationMode_t *pending)
UNSUPPORTED(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t *mode)
UNSUPPORTED(nvmlDeviceGetRunningProcessDetailList, nvmlProcessDetailList_t *list)
UNSUPPORTED(nvmlDeviceGetCpuAffinity, unsigned int size, unsigned long *set)
UNSUPPORTED(nvmlDeviceGetMemoryAffinity, unsigned int size, unsigned long *set, nvmlAffinityScope_t scope)
UNSUPPORTED(nvmlDeviceGetNumaNodeId, unsigned int *node)
UNSUPPORTED(nvmlDeviceSetPersistenceMode, nvmlEnableState_t mode)
UNSUPPORTED(nvmlDeviceSetComputeMode, nvmlComputeMode_t mode)
UNSUPPORTED(nvmlDeviceSetPowerManagementLimit, unsigned int milliwatts)
UNSUPPORTED(nvmlDeviceSetGpuLockedClocks, unsigned int least, unsigned int most)
UNSUPPORTED(nvmlDeviceResetGpuLockedClocks)
