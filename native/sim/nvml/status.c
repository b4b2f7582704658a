/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the GPU is doing. Utilisation comes from the timeline's log; power, temperature and clocks follow from
 * it and from the model, since nothing here gets warm.
 */
#include "sim_nvml.h"

#include <string.h>

#define WINDOW_NS 1000000000ull

enum { IDLE_C = 28, BUSY_C = 34, IDLE_CLOCK_MHZ = 345 };

/* What runs of one GPU's log lie between from_ns and to_ns. Called with the shared mutex held. */
struct walk {
	const struct sim_gpu *gpu;
	uint64_t from_ns, to_ns, left, oldest;
};

static struct walk walk_back(uint32_t gpu_index, uint64_t from_ns, uint64_t to_ns)
{
	const struct sim_gpu *gpu = &nvml.view.state->gpu[gpu_index];
	uint64_t oldest = gpu->runs > SIM_LOG_LENGTH ? gpu->runs - SIM_LOG_LENGTH : 0;
	return (struct walk){gpu, from_ns, to_ns, gpu->runs, oldest};
}

/* Returns the next run, latest first, and how much of it lies between the two times; NULL at the end. */
static const struct sim_run *walk_on(struct walk *w, uint64_t *busy_ns)
{
	if (w->left == w->oldest)
		return NULL;
	const struct sim_run *run = &w->gpu->log[--w->left % SIM_LOG_LENGTH];
	uint64_t start = run->start_ns, end = run->start_ns + run->length_ns;
	if (end <= w->from_ns)
		return NULL;
	start = start < w->from_ns ? w->from_ns : start;
	end = end > w->to_ns ? w->to_ns : end;
	*busy_ns = end > start ? end - start : 0;
	return run;
}

static unsigned percent(uint64_t part, uint64_t whole)
{
	return whole ? (unsigned)((part * 100 + whole / 2) / whole) : 0;
}

unsigned nvml_busy_percent(uint32_t gpu)
{
	sim_lock(&nvml.view);
	nvml_sweep();
	uint64_t now = timeline_now();
	timeline_advance(&nvml.view, gpu, now);
	uint64_t busy = 0, part;
	struct walk w = walk_back(gpu, now > WINDOW_NS ? now - WINDOW_NS : 0, now);
	while (walk_on(&w, &part))
		busy += part;
	sim_unlock(&nvml.view);
	return percent(busy, WINDOW_NS);
}

static bool is_divided(nvmlDevice_t device)
{
	return __atomic_load_n(&nvml.view.state->gpu[device->index].mig_mode, __ATOMIC_ACQUIRE) ==
	       NVML_DEVICE_MIG_ENABLE;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	NVML_ENTER_DEVICE(device, utilization);
	if (is_divided(device)) /* nvml.h: not currently supported on MIG-enabled GPUs */
		return NVML_ERROR_NOT_SUPPORTED;
	utilization->gpu = nvml_busy_percent(device->index);
	utilization->memory = 0; /* simulated kernels touch no memory */
	return NVML_SUCCESS;
}

/* What driver 580 on an H200 wants room for before it gives any sample, however few processes there are. */
static const unsigned SAMPLES_ROOM = 72;

/* How long a process's use of a GPU can be asked for. */
#define KEPT_NS 60000000000ull

/*
 * Writes one sample for each process that ran between from_ns and to_ns, of those that live: how much of that
 * time it ran. Returns how many there are. Called with the shared mutex held.
 */
static unsigned sample(uint32_t gpu, uint64_t from_ns, uint64_t to_ns, unsigned long long stamp_us,
		       nvmlProcessUtilizationSample_t *samples, unsigned room)
{
	const struct sim_state *s = nvml.view.state;
	uint64_t busy[SIM_MAX_SLOTS] = {0}, part;
	struct walk w = walk_back(gpu, from_ns, to_ns);
	for (const struct sim_run *run; (run = walk_on(&w, &part));)
		if (run->reuse == s->slot[run->slot].reuse)
			busy[s->slot[run->slot].owner] += part;
	unsigned sampled = 0;
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1)) {
		if (busy[i] && sampled < room)
			samples[sampled] =
				(nvmlProcessUtilizationSample_t){.pid = (unsigned)s->slot[i].pid,
								 .timeStamp = stamp_us,
								 .smUtil = percent(busy[i], to_ns - from_ns)};
		sampled += busy[i] > 0;
	}
	return sampled;
}

/*
 * What ran since last_seen_us; with 0 during the last second. The time stamp of the samples is the end of the
 * time that they are about, so that who asks again with it finds every moment in one answer and in one alone.
 */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long last_seen_us)
{
	NVML_ENTER_DEVICE(device, count);
	if (is_divided(device)) /* as above */
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned room = samples ? *count : 0;
	if (room < SAMPLES_ROOM) {
		*count = SAMPLES_ROOM;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	sim_lock(&nvml.view);
	nvml_sweep();
	struct timespec wall; /* both clocks at one moment: nobody is waited for between them */
	clock_gettime(CLOCK_REALTIME, &wall);
	uint64_t now = timeline_now(), window = WINDOW_NS;
	unsigned long long now_us =
		(unsigned long long)wall.tv_sec * 1000000 + (unsigned long long)wall.tv_nsec / 1000;
	now -= (unsigned)wall.tv_nsec % 1000; /* where now_us is, which is in whole us */
	timeline_advance(&nvml.view, device->index, now);
	if (last_seen_us >= now_us)
		window = 0;
	else if (last_seen_us)
		window = now_us - last_seen_us < KEPT_NS / 1000 ? (now_us - last_seen_us) * 1000 : KEPT_NS;
	unsigned sampled = sample(device->index, now > window ? now - window : 0, now, now_us, samples, room);
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

/* The power of nvmlDeviceGetPowerUsage over all the time since the driver was loaded. */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
	NVML_ENTER_DEVICE(device, millijoules);
	uint64_t limit_mw = device->model->power_limit_w * 1000, idle_mw = limit_mw / 10;
	sim_lock(&nvml.view);
	uint64_t now = timeline_now();
	timeline_advance(&nvml.view, device->index, now);
	uint64_t loaded_us = (now - nvml.view.state->loaded_ns) / 1000;
	uint64_t busy_us = nvml.view.state->gpu[device->index].busy_ns / 1000;
	sim_unlock(&nvml.view);
	*millijoules = (idle_mw * loaded_us + (limit_mw - idle_mw) * busy_us) / 1000000;
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

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	NVML_ENTER_DEVICE(device, mode);
	if (mode->version != nvmlDeviceAddressingMode_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	mode->value = device->model->addressing;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	NVML_ENTER_DEVICE(device, current && pending);
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

static uint32_t trouble(nvmlDevice_t device)
{
	return __atomic_load_n(&nvml.view.state->gpu[device->index].trouble, __ATOMIC_ACQUIRE);
}

static unsigned long long clocks_reasons(nvmlDevice_t device)
{
	bool busy = nvml_busy_percent(device->index) > 0;
	return (unsigned long long)(busy ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle) |
	       (trouble(device) & SIM_CLOCK_REASONS);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	NVML_ENTER_DEVICE(device, reasons);
	*reasons = clocks_reasons(device);
	return NVML_SUCCESS;
}

/* Its name before driver 535. */
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	NVML_ENTER_DEVICE(device, reasons);
	*reasons = clocks_reasons(device);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
				       unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
	NVML_ENTER_DEVICE(device, corrected && uncorrected && pending && failed);
	*corrected = *uncorrected = *failed = 0;
	*pending = (trouble(device) & SIM_ROWS_PENDING) != 0;
	return NVML_SUCCESS;
}
