/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmlDeviceGetFieldValues: counters of the bytes that a GPU moved over PCIe and NVLink. Every other field is
 * not supported. The result of each field is in its own row; the call itself succeeds then. PCIe's counters
 * have 32 bits and wrap, as seen on an H200 with driver 580.
 */
#include "sim_nvml.h"

#define ALL_LINKS 0xffffffffu

/* The counter that a field names, or NULL. PCIe in bytes, NVLink in KiB. */
static const uint64_t *counter_of(const struct sim_gpu *gpu, const nvmlFieldValue_t *field, unsigned *unit)
{
	bool links = field->scopeId == ALL_LINKS;
	*unit = 1;
	switch (field->fieldId) {
	case NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
		return &gpu->sent_bytes;
	case NVML_FI_DEV_PCIE_COUNT_RX_BYTES:
		return &gpu->received_bytes;
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
		*unit = 1024;
		return links ? &gpu->peer_sent_bytes : NULL;
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		*unit = 1024;
		return links ? &gpu->peer_received_bytes : NULL;
	default:
		return NULL;
	}
}

static bool is_pcie(const nvmlFieldValue_t *field)
{
	return field->fieldId == NVML_FI_DEV_PCIE_COUNT_TX_BYTES ||
	       field->fieldId == NVML_FI_DEV_PCIE_COUNT_RX_BYTES;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	NVML_ENTER_DEVICE(device, values);
	if (count < 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct timespec wall;
	clock_gettime(CLOCK_REALTIME, &wall);
	sim_lock(&nvml.view);
	const struct sim_gpu *gpu = &nvml.view.state->gpu[device->index];
	for (int i = 0; i < count; i++) {
		unsigned unit;
		const uint64_t *counter = counter_of(gpu, &values[i], &unit);
		values[i].timestamp = (long long)wall.tv_sec * 1000000 + wall.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = counter ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		values[i].value.ullVal = counter ? *counter / unit : 0;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		if (is_pcie(&values[i])) {
			values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			values[i].value.ullVal = (uint32_t)values[i].value.ullVal;
		}
	}
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}
