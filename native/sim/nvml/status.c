/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the GPU is doing. Utilisation comes from the timeline's log; power, temperature and clocks follow from
 * it and from the model, since nothing here gets warm.
 */
#include "sim_nvml.h"

#include <string.h>

#define WINDOW_NS 1000000000ull

enum { IDLE_C = 28, BUSY_C = 34, IDLE_CLOCK_MHZ = 345 };

uint64_t nvml_busy_ns(uint32_t gpu_index, uint32_t slot, uint64_t now, uint64_t window)
{
	const struct sim_gpu *gpu = &nvml.view.state->gpu[gpu_index];
	uint64_t from = now > window ? now - window : 0, busy = 0;
	uint64_t oldest = gpu->runs > SIM_LOG_LENGTH ? gpu->runs - SIM_LOG_LENGTH : 0;
	for (uint64_t i = gpu->runs; i-- > oldest;) {
		const struct sim_run *run = &gpu->log[i % SIM_LOG_LENGTH];
		uint64_t start = run->start_ns, end = run->start_ns + run->length_ns;
		if (end <= from)
			break;
		if (slot != SIM_NO_SLOT &&
		    (run->slot != slot || run->reuse != nvml.view.state->slot[slot].reuse))
			continue;
		start = start < from ? from : start;
		end = end > now ? now : end;
		if (end > start)
			busy += end - start;
	}
	return busy;
}

unsigned nvml_busy_percent(uint32_t gpu)
{
	sim_lock(&nvml.view);
	sim_sweep(&nvml.view);
	uint64_t now = timeline_now();
	timeline_advance(&nvml.view, gpu, now);
	uint64_t busy = nvml_busy_ns(gpu, SIM_NO_SLOT, now, WINDOW_NS);
	sim_unlock(&nvml.view);
	return (unsigned)((busy * 100 + WINDOW_NS / 2) / WINDOW_NS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	NVML_ENTER_DEVICE(device, utilization);
	utilization->gpu = nvml_busy_percent(device->index);
	utilization->memory = 0; /* simulated kernels touch no memory */
	return NVML_SUCCESS;
}

/* What driver 580 on an H200 wants room for before it gives any sample, however few processes there are. */
static const unsigned SAMPLES_ROOM = 72;

/* Samples newer than last_seen_us: one for each process that ran during the last second. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long last_seen_us)
{
	NVML_ENTER_DEVICE(device, count);
	unsigned room = samples ? *count : 0, sampled = 0;
	if (room < SAMPLES_ROOM) {
		*count = SAMPLES_ROOM;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	struct timespec wall;
	clock_gettime(CLOCK_REALTIME, &wall);
	unsigned long long now_us =
		(unsigned long long)wall.tv_sec * 1000000 + (unsigned long long)wall.tv_nsec / 1000;
	sim_lock(&nvml.view);
	sim_sweep(&nvml.view);
	uint64_t now = timeline_now(), window = WINDOW_NS;
	timeline_advance(&nvml.view, device->index, now);
	if (last_seen_us && last_seen_us < now_us && (now_us - last_seen_us) * 1000 < window)
		window = (now_us - last_seen_us) * 1000;
	const uint64_t *live = nvml.view.state->live;
	for (uint32_t i = sim_bit_next(live, 0); i != SIM_NO_SLOT; i = sim_bit_next(live, i + 1)) {
		uint64_t busy = nvml_busy_ns(device->index, i, now, window);
		if (busy && sampled < room)
			samples[sampled] = (nvmlProcessUtilizationSample_t){
				.pid = (unsigned)nvml.view.state->slot[i].pid,
				.timeStamp = now_us,
				.smUtil = (unsigned)((busy * 100 + window / 2) / window)};
		sampled += busy > 0;
	}
	sim_unlock(&nvml.view);
	if (!sampled)
		return NVML_ERROR_NOT_FOUND;
	*count = sampled;
	return sampled > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
				      unsigned int *celsius)
{
	NVML_ENTER_DEVICE(device, celsius);
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = IDLE_C + nvml_busy_percent(device->index) * BUSY_C / 100;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	NVML_ENTER_DEVICE(device, temperature);
	if (temperature->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned celsius;
	nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
	if (result == NVML_SUCCESS)
		temperature->temperature = (int)celsius;
	return result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_ENTER_DEVICE(device, milliwatts);
	unsigned limit = device->model->power_limit_w * 1000, idle = limit / 10;
	*milliwatts = idle + (limit - idle) / 100 * nvml_busy_percent(device->index);
	return NVML_SUCCESS;
}

static nvmlReturn_t power_limit(nvmlDevice_t device, unsigned int *milliwatts)
{
	*milliwatts = device->model->power_limit_w * 1000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_ENTER_DEVICE(device, milliwatts);
	return power_limit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_ENTER_DEVICE(device, milliwatts);
	return power_limit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_ENTER_DEVICE(device, milliwatts);
	return power_limit(device, milliwatts);
}

static nvmlReturn_t clock_of(nvmlDevice_t device, nvmlClockType_t type, bool most, unsigned int *mhz)
{
	if ((unsigned)type >= NVML_CLOCK_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (type == NVML_CLOCK_MEM)
		*mhz = device->model->memory_clock_mhz;
	else
		*mhz = most || nvml_busy_percent(device->index) ? device->model->clock_mhz : IDLE_CLOCK_MHZ;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	NVML_ENTER_DEVICE(device, mhz);
	return clock_of(device, type, false, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	NVML_ENTER_DEVICE(device, mhz);
	return clock_of(device, type, true, mhz);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state)
{
	NVML_ENTER_DEVICE(device, state);
	*state = NVML_PSTATE_0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_ENTER_DEVICE(device, mode);
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	NVML_ENTER_DEVICE(device, mode);
	*mode = NVML_COMPUTEMODE_DEFAULT;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_ENTER_DEVICE(device, mode);
	*mode = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active)
{
	NVML_ENTER_DEVICE(device, active);
	*active = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	NVML_ENTER_DEVICE(device, current && pending);
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	NVML_ENTER_DEVICE(device, reasons);
	bool busy = nvml_busy_percent(device->index) > 0;
	*reasons = (unsigned long long)(busy ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle);
	return NVML_SUCCESS;
}
