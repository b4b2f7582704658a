/* SPDX-License-Identifier: Apache-2.0 */
#include "region/glance.h"

#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

uint64_t hami_region_own(struct hami_region *region)
{
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) < 0)
		return 0;
	return __atomic_load_n(&region->usage->slots[region->slot].used_bytes, __ATOMIC_RELAXED);
}

uint32_t hami_region_processes(struct hami_region *region)
{
	return PEEK(region->usage->head.processes);
}

uint32_t hami_region_phase(struct hami_region *region)
{
	const struct hami_limits *job = region->job, *step = region->step;
	uint32_t before = 0;
	for (uint32_t i = 0; i < HAMI_USAGE_STEP_COUNT; i++) {
		const struct hami_usage_step *other = &region->usage->steps[i];
		uint32_t cores = PEEK(other->cores_percent);
		if (!PEEK(other->processes))
			continue;
		if (PEEK(other->step_id) == step->step_id)
			break;
		before += cores <= 100 ? cores : 100;
	}
	uint32_t room =
		step->cores_percent < job->cores_percent ? job->cores_percent - step->cores_percent : 0;
	return (job->phase_percent + (before < room ? before : room)) % 100;
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
