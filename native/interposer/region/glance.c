/* SPDX-License-Identifier: Apache-2.0 */
#include "region/glance.h"

#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define FUTURE_NS 2000000000ull /* what was later is from before the clock was set back */

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

uint64_t hami_region_time_used(const struct hami_region *region)
{
	return PEEK(region->usage->head.time_used);
}

void hami_region_note_busy(struct hami_region *region, int64_t now)
{
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	if (slot >= 0)
		__atomic_store_n(&region->usage->slots[slot].busy_unix_ns, (uint64_t)now, __ATOMIC_RELAXED);
}

void hami_region_note_filled(struct hami_region *region, uint32_t filled)
{
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	if (slot >= 0)
		__atomic_store_n(&region->usage->slots[slot].filled_permille, filled, __ATOMIC_RELAXED);
}

struct hami_crowd hami_region_crowd(struct hami_region *region, int64_t since)
{
	const int32_t own = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	const struct hami_usage_slot *slots = region->usage->slots;
	const uint32_t processes = hami_region_processes(region);
	uint32_t left = processes > 1 ? processes : 0;
	struct hami_crowd crowd = {.of_step.rank = UINT32_MAX};
	bool is_busy = false;
	for (int32_t i = 0; own >= 0 && i < (int32_t)HAMI_USAGE_SLOT_COUNT && left; i++) {
		if (PEEK(slots[i].state) != 1)
			continue;
		left--;
		/* Before, or of another clock. */
		if (PEEK(slots[i].busy_unix_ns) - (uint64_t)since > FUTURE_NS)
			continue;
		is_busy = is_busy || i == own;
		crowd.of_job.rank += i < own;
		crowd.of_job.count++;
		if (PEEK(slots[i].step_row) != PEEK(slots[own].step_row))
			continue;
		const uint32_t counts = hami_part_counts(PEEK(slots[i].filled_permille));
		crowd.sharers += counts;
		if (counts < HAMI_PART_MOST)
			continue;
		if (i == own)
			crowd.of_step.rank = crowd.of_step.count;
		crowd.of_step.count++;
	}
	crowd.of_job = is_busy ? crowd.of_job : (struct hami_part){0};
	return crowd;
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
