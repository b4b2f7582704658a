/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/moved.h"

#include <stdlib.h>

#include "driver/remake.h"
#include "hami_contract.h"
#include "limits/kernel_copy.h"

/* A kernel copies whole units. */
static size_t by_libcuda(const struct hami_movable *m)
{
	if (m->holds == HAMI_HOLDS_SMALL)
		return 0; /* it copies neither two allocations at once nor what is free between them */
	return m->allocated ? m->allocated / HAMI_KERNEL_UNIT * HAMI_KERNEL_UNIT : m->length;
}

uint32_t hami_moved_plan(struct hami_moved *m, const struct real_cuda *real, CUcontext context)
{
	m->context = context;
	m->objects = hami_movable_list(HAMI_MOVED_LEAST, &m->count);
	m->pieces = calloc(m->count ? m->count : 1, sizeof *m->pieces);
	for (size_t i = 0; i < m->count; i++)
		m->bytes += m->objects[i].length;
	const uint64_t room = hami_arena_room(&m->arena);
	if (context && m->bytes > room)
		m->bytes -= hami_transfer_drop_refused(real, context, m->objects, &m->count);
	if (!m->pieces || m->bytes > room)
		return HAMI_SWAPPED_ROOM;
	if (!m->bytes)
		return HAMI_SWAPPED_HOST;
	if (!context)
		return HAMI_SWAPPED_CONTEXTS;
	if (!hami_arena_have(&m->arena, real, context, m->bytes))
		return HAMI_SWAPPED_ROOM;
	size_t at = 0;
	for (size_t i = 0; i < m->count; at += m->objects[i++].length)
		m->pieces[i] = (struct hami_piece){.device = m->objects[i].base,
						   .host = m->arena.memory + at,
						   .bytes = m->objects[i].length,
						   .holds = m->objects[i].holds,
						   .by_libcuda = by_libcuda(&m->objects[i])};
	return HAMI_SWAPPED_HOST;
}

uint32_t hami_moved_free(struct hami_moved *m, uint64_t *moved, bool *lost)
{
	size_t kept = 0;
	uint32_t refusal = HAMI_SWAPPED_HOST;
	*moved = 0;
	for (size_t i = 0; i < m->count && !*lost; i++) {
		const struct hami_movable object = m->objects[i];
		const CUresult copied = m->pieces[i].result;
		if (copied == CUDA_ERROR_INVALID_VALUE || !hami_movable_same(&object))
			continue;
		if (copied != CUDA_SUCCESS || !hami_remake_free(&object, lost)) {
			refusal = copied == CUDA_ERROR_OPERATING_SYSTEM ? HAMI_SWAPPED_ROOM
									: HAMI_SWAPPED_DRIVER;
			continue;
		}
		*moved += object.length;
		m->objects[kept] = object;
		m->pieces[kept++] = m->pieces[i];
	}
	m->count = kept;
	return kept ? HAMI_SWAPPED_HOST : refusal;
}

const char *hami_moved_failure(const struct hami_moved *m)
{
	CUresult failed = CUDA_SUCCESS;
	for (size_t i = 0; i < m->count; i++)
		failed = failed == CUDA_SUCCESS ? m->pieces[i].result : failed;
	if (failed == CUDA_ERROR_OPERATING_SYSTEM || !hami_arena_intact(&m->arena))
		return "the disk of " HAMI_ENV_SWAP_DIR " failed";
	return failed == CUDA_SUCCESS ? NULL : "a copy failed";
}

void hami_moved_forget(struct hami_moved *m)
{
	hami_arena_give_back(&m->arena);
	free(m->objects);
	free(m->pieces);
	*m = (struct hami_moved){.arena = m->arena, .context = m->context};
}

bool hami_moved_has(const struct hami_moved *m, uint64_t key)
{
	for (size_t i = 0; i < m->count; i++)
		if (hami_movable_has(&m->objects[i], (uint32_t)(key >> 32), (uint32_t)key))
			return true;
	return false;
}

bool hami_moved_has_at(const struct hami_moved *m, uint64_t base)
{
	for (size_t i = 0; i < m->count; i++)
		if (m->objects[i].base == base)
			return true;
	return false;
}
