/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU performance monitoring: the rates of bytes over PCIe and NVLink between two samples. GPUs whose model says
 * gpm=1 have it; every other metric is not supported. A sample is exact at the moment when it is taken: the 100 ms
 * in which a GPU renews what it reads are not simulated.
 */
#include "sim_nvml.h"

#include <stdlib.h>

/* device: SIM_NO_DEVICE as long as nothing was read into the sample. */
#define SIM_NO_DEVICE UINT32_MAX
struct nvmlGpmSample_st {
	uint32_t device;
	uint64_t at_ns;
	uint64_t sent_bytes, received_bytes, peer_sent_bytes, peer_received_bytes;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	NVML_ENTER_DEVICE(device, support);
	if (support->version != NVML_GPM_SUPPORT_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = device->model->gpm != 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	NVML_ENTER();
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof **sample);
	if (!*sample)
		return NVML_ERROR_MEMORY;
	(*sample)->device = SIM_NO_DEVICE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	NVML_ENTER();
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(sample);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	NVML_ENTER_DEVICE(device, sample);
	if (!device->model->gpm)
		return NVML_ERROR_NOT_SUPPORTED;
	sim_lock(&nvml.view);
	const struct sim_gpu *gpu = &nvml.view.state->gpu[device->index];
	*sample = (struct nvmlGpmSample_st){device->index,        timeline_now(),
					    gpu->sent_bytes,      gpu->received_bytes,
					    gpu->peer_sent_bytes, gpu->peer_received_bytes};
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}

/* Bytes of a metric between two samples. False when the metric is not simulated. */
static bool bytes_of(unsigned metric, const struct nvmlGpmSample_st *older,
		     const struct nvmlGpmSample_st *newer, uint64_t *bytes)
{
	switch (metric) {
	case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
		*bytes = newer->sent_bytes - older->sent_bytes;
		return true;
	case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
		*bytes = newer->received_bytes - older->received_bytes;
		return true;
	case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
		*bytes = newer->peer_sent_bytes - older->peer_sent_bytes;
		return true;
	case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
		*bytes = newer->peer_received_bytes - older->peer_received_bytes;
		return true;
	default:
		return false;
	}
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
	NVML_ENTER();
	if (!asked || !asked->sample1 || !asked->sample2 || asked->numMetrics > NVML_GPM_METRIC_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (asked->version != NVML_GPM_METRICS_GET_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct nvmlGpmSample_st *older = asked->sample1, *newer = asked->sample2;
	if (older->device == SIM_NO_DEVICE || older->device != newer->device || older->at_ns >= newer->at_ns)
		return NVML_ERROR_INVALID_ARGUMENT;
	double seconds = (double)(newer->at_ns - older->at_ns) / 1e9;
	for (unsigned i = 0; i < asked->numMetrics; i++) {
		nvmlGpmMetric_t *metric = &asked->metrics[i];
		uint64_t bytes = 0;
		metric->nvmlReturn = bytes_of(metric->metricId, older, newer, &bytes)
					     ? NVML_SUCCESS
					     : NVML_ERROR_NOT_SUPPORTED;
		metric->value = (double)bytes / (1 << 20) / seconds;
	}
	return NVML_SUCCESS;
}
