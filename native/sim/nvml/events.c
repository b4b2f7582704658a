/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: Xid and ECC errors, which are put in from outside (sim-state --xid, --ecc). Each set finds every one that
 * came after it was registered for that GPU once, in order; of those that it has not looked at, the last SIM_MAX_XIDS.
 */
#include "sim_nvml.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SUPPORTED                                                                                            \
	((unsigned long long)(nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError |               \
			      nvmlEventTypeDoubleBitEccError))

struct nvmlEventSet_st {
	uint64_t next;                /* the first Xid that this set has not looked at */
	uint64_t since[SIM_MAX_GPUS]; /* the first one that it is told of */
	unsigned long long types[SIM_MAX_GPUS];
};

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	NVML_ENTER_DEVICE(device, types);
	*types = SUPPORTED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	NVML_ENTER();
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof **set);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	NVML_ENTER();
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	NVML_ENTER_DEVICE(device, set);
	if (types & ~(unsigned long long)nvmlEventTypeAll)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	sim_lock(&nvml.view);
	if (!set->types[device->index])
		set->since[device->index] = nvml.view.state->xids;
	set->types[device->index] |= types;
	sim_unlock(&nvml.view);
	return NVML_SUCCESS;
}

/* NVML_SUCCESS with an event in *data, or NVML_ERROR_TIMEOUT: none is there. */
static nvmlReturn_t take(nvmlEventSet_t set, nvmlEventData_t *data)
{
	const struct sim_state *s = nvml.view.state;
	nvmlReturn_t result = NVML_ERROR_TIMEOUT;
	sim_lock(&nvml.view);
	if (s->xids > SIM_MAX_XIDS && set->next < s->xids - SIM_MAX_XIDS)
		set->next = s->xids - SIM_MAX_XIDS;
	while (set->next < s->xids && result != NVML_SUCCESS) {
		uint64_t i = set->next++;
		const struct sim_xid *xid = &s->xid[i % SIM_MAX_XIDS];
		if (!(set->types[xid->gpu] & xid->type) || i < set->since[xid->gpu])
			continue;
		*data = (nvmlEventData_t){.device = &nvml.device[xid->gpu],
					  .eventType = xid->type,
					  .eventData = xid->code,
					  .gpuInstanceId = UINT32_MAX,
					  .computeInstanceId = UINT32_MAX};
		result = NVML_SUCCESS;
	}
	sim_unlock(&nvml.view);
	return result;
}

static bool has_lost_gpu(const struct nvmlEventSet_st *set)
{
	for (uint32_t g = 0; g < nvml.view.machine.gpu_count; g++)
		if (set->types[g] && __atomic_load_n(&nvml.view.state->gpu[g].nvml_error, __ATOMIC_ACQUIRE) ==
					     NVML_ERROR_GPU_IS_LOST)
			return true;
	return false;
}

/* Sleeps while `seen` is the latest news, until at_ns. False when a signal came. */
static bool sleep_until(uint32_t seen, uint64_t at_ns)
{
	struct timespec t = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
	return syscall(SYS_futex, &nvml.view.state->news, FUTEX_WAIT_BITSET, seen, &t, NULL,
		       FUTEX_BITSET_MATCH_ANY) == 0 ||
	       errno != EINTR;
}

/* Events come before the news that a GPU of the set is lost, which every call then tells. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	NVML_ENTER();
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t until = timeline_now() + timeout_ms * 1000000ull;
	for (;;) {
		uint32_t seen = __atomic_load_n(&nvml.view.state->news, __ATOMIC_ACQUIRE);
		nvmlReturn_t result = take(set, data);
		if (result != NVML_SUCCESS && has_lost_gpu(set))
			result = NVML_ERROR_GPU_IS_LOST;
		if (result != NVML_ERROR_TIMEOUT || timeline_now() >= until || !sleep_until(seen, until))
			return result;
	}
}

/* The name from before MIG, whose structure ends before the instances. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	nvmlEventData_t event;
	if (!data)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = nvmlEventSetWait_v2(set, &event, timeout_ms);
	if (result == NVML_SUCCESS) {
		data->device = event.device;
		data->eventType = event.eventType;
		data->eventData = event.eventData;
	}
	return result;
}
