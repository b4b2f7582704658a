/* SPDX-License-Identifier: Apache-2.0 */
#include "region/glance.h"

#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

uint64_t hami_region_own(struct hami_region *region)
{
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) < 0)
		return 0;
	return __atomic_load_n(&region->usage->slots[region->slot].used_bytes, __ATOMIC_RELAXED);
}

uint32_t hami_region_step_processes(struct hami_region *region)
{
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	uint32_t row = slot < 0 ? UINT32_MAX : PEEK(region->usage->slots[slot].step_row);
	return row < HAMI_USAGE_STEP_COUNT ? PEEK(region->usage->steps[row].processes) : 0;
}

uint32_t hami_region_processes(struct hami_region *region)
{
	return PEEK(region->usage->head.processes);
}

void hami_region_lacking(struct hami_region *region)
{
	__atomic_fetch_add(&region->usage->head.device_oom_count, 1, __ATOMIC_RELAXED);
}

void hami_region_add_time(struct hami_region *region, uint64_t busy_ns, uint64_t throttled_ns)
{
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) < 0)
		return;
	struct hami_usage_slot *slot = &region->usage->slots[region->slot];
	__atomic_fetch_add(&slot->gpu_busy_ns, busy_ns, __ATOMIC_RELAXED);
	__atomic_fetch_add(&slot->throttled_ns, throttled_ns, __ATOMIC_RELAXED);
}
