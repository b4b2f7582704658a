/* SPDX-License-Identifier: Apache-2.0 */
#include "region/slots.h"

#include <errno.h>

struct hami_usage_step *hami_slot_step(struct hami_usage_file *u, const struct hami_usage_slot *slot)
{
	uint32_t row = __atomic_load_n(&slot->step_row, __ATOMIC_RELAXED);
	return row < HAMI_USAGE_STEP_COUNT ? &u->steps[row] : NULL;
}

void hami_slots_recompute(struct hami_usage_file *u)
{
	uint64_t total = 0;
	uint32_t processes = 0;
	for (uint32_t i = 0; i < HAMI_USAGE_STEP_COUNT; i++) {
		POKE(u->steps[i].used_bytes, 0);
		POKE(u->steps[i].processes, 0);
	}
	for (uint32_t i = 0; i < HAMI_USAGE_SLOT_COUNT; i++) {
		const struct hami_usage_slot *s = &u->slots[i];
		struct hami_usage_step *step = hami_slot_step(u, s);
		if (s->state != 1 || !step)
			continue;
		total += s->used_bytes;
		PLUS(step->used_bytes, s->used_bytes);
		PLUS(step->processes, 1);
		processes++;
	}
	POKE(u->head.used_bytes, total);
	POKE(u->head.processes, processes);
}

/* Sets up a slot that holds nothing yet. */
static void fill(struct hami_usage_slot *s, uint32_t state, uint32_t pid, uint32_t row)
{
	POKE(s->pid, pid);
	POKE(s->step_row, row);
	POKE(s->used_bytes, 0);
	POKE(s->gpu_busy_ns, 0);
	POKE(s->throttled_ns, 0);
	s->peak_bytes = 0;
	/* Of the last process: one that was killed may have said that its memory is away. */
	POKE(s->swap_state, HAMI_SWAPPED_GPU);
	POKE(s->swap_count, 0);
	POKE(s->swapped_bytes, 0);
	POKE(s->busy_unix_ns, 0);
	POKE(s->filled_permille, 0);
	POKE(s->state, state);
}

void hami_slot_clear(struct hami_usage_file *u, struct hami_usage_slot *s)
{
	if (s->state != 1)
		return;
	u->head.reclaimed_bytes += s->used_bytes;
	u->head.gpu_busy_ns += s->gpu_busy_ns;
	u->head.throttled_ns += s->throttled_ns;
	PLUS(u->head.used_bytes, -s->used_bytes);
	PLUS(u->head.processes, -1u);
	struct hami_usage_step *step = hami_slot_step(u, s);
	if (step) {
		PLUS(step->used_bytes, -s->used_bytes);
		PLUS(step->processes, -1u);
	}
	fill(s, 0, 0, 0);
}

/* Returns the row of this step, or makes it one; UINT32_MAX when all are taken. */
static uint32_t step_row(struct hami_usage_file *u, const struct hami_limits *step)
{
	uint32_t free_row = UINT32_MAX;
	for (uint32_t i = 0; i < HAMI_USAGE_STEP_COUNT; i++) {
		if (u->steps[i].processes && u->steps[i].step_id == step->step_id)
			return i;
		if (!u->steps[i].processes &&
		    (free_row == UINT32_MAX || u->steps[i].step_id == step->step_id))
			free_row = i;
	}
	if (free_row != UINT32_MAX) {
		struct hami_usage_step *row = &u->steps[free_row];
		if (row->step_id != step->step_id) /* the same one goes on with what it owes */
			row->time_full_at = row->peak_bytes = row->oom_count = 0;
		POKE(row->step_id, step->step_id);
		POKE(row->cores_percent, step->cores_percent);
		POKE(row->used_bytes, 0);
	}
	return free_row;
}

/*
 * Returns how many slots are in use. Counts them: unlike the head's number this one is right whatever happened to those
 * who changed the sums.
 */
static uint32_t used_slots(const struct hami_usage_file *u)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < HAMI_USAGE_SLOT_COUNT; i++)
		count += u->slots[i].state == 1;
	return count;
}

int hami_slot_take(struct hami_usage_file *u, struct hami_usage_slot *slot, uint32_t pid,
		   const struct hami_limits *step, uint32_t most)
{
	if (most && used_slots(u) >= most)
		return -EDQUOT;
	uint32_t row = step_row(u, step);
	if (row == UINT32_MAX)
		return -EUSERS;
	fill(slot, 1, pid, row);
	PLUS(u->steps[row].processes, 1);
	PLUS(u->head.processes, 1);
	return 0;
}
