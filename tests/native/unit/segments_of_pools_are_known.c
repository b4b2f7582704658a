/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment of a pool is known as one, wherever the pool maps it (driver/movable.h); the program's pools are trimmed until
 * they go, or may have gone with a context (limits/trim.h).
 */
#include "../../../native/interposer/base/lock.c"
#include "../../../native/interposer/driver/movable.c"
#include "../../../native/interposer/limits/trim.c"

#include "check.h"

enum { CLIENT = 5, HANDLE = 7 };

#define AT (1ull << 40)
#define ELSEWHERE (2ull << 40)
#define SEGMENT (32ull << 20)

bool hami_rm_copy(void *out, const void *from, size_t size)
{
	memcpy(out, from, size);
	return true;
}

static void map(uint64_t base)
{
	static struct uvm_map_external m = {
		.length = SEGMENT, .count = 1, .client = CLIENT, .memory = HANDLE};
	m.base = base;
	hami_movable_mapped(3, &m);
}

static bool is_pooled(void)
{
	size_t count;
	struct hami_movable *list = hami_movable_list(SEGMENT, &count);
	CHECK(list && count == 1);
	const bool pooled = list->holds == HAMI_HOLDS_POOL;
	CHECK(hami_movable_same(list));
	free(list);
	return pooled;
}

static void wherever_it_is_mapped(void)
{
	struct hami_movable asked = {.request = {.client = CLIENT}, .params.head.size = SEGMENT};
	uint64_t last = hami_movable_last();
	hami_movable_made(3, HANDLE, &asked);
	map(AT);
	CHECK(hami_movable_last() != last && !is_pooled());
	hami_movable_pool(ELSEWHERE, 4096);
	CHECK(!is_pooled());
	hami_movable_pool(AT + SEGMENT - 4096, 4096);
	CHECK(is_pooled());
	last = hami_movable_last();
	CHECK(hami_movable_last() == last); /* nothing to look for */
	hami_movable_unmapped(AT, SEGMENT);
	map(ELSEWHERE);
	CHECK(hami_movable_last() != last); /* to be looked for again */
	hami_movable_pool(ELSEWHERE, 64 << 20);
	CHECK(is_pooled());
}

static uintptr_t trimmed; /* a bit for each pool */

static CUresult trim(CUmemoryPool pool, size_t keep)
{
	CHECK(!keep);
	trimmed |= (uintptr_t)pool;
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	*context = NULL;
	return CUDA_SUCCESS;
}

static CUresult device_of(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult its_pool(CUmemoryPool *pool, CUdevice device)
{
	*pool = (CUmemoryPool)(uintptr_t)1;
	return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static uintptr_t trims(void)
{
	static const struct real_cuda real = {.cuMemPoolTrimTo = trim,
					      .cuDeviceGetMemPool = its_pool,
					      .cuDeviceGetDefaultMemPool = its_pool,
					      .cuCtxPushCurrent_v2 = push,
					      .cuCtxPopCurrent_v2 = pop,
					      .cuCtxGetDevice = device_of};
	trimmed = 0;
	hami_trim_pools(&real, NULL);
	return trimmed;
}

static void until_they_go(void)
{
	CHECK(trims() == 1);
	hami_trim_add((CUmemoryPool)(uintptr_t)2);
	hami_trim_add((CUmemoryPool)(uintptr_t)4);
	CHECK(trims() == 7);
	hami_trim_remove((CUmemoryPool)(uintptr_t)2);
	CHECK(trims() == 5);
	hami_trim_forget();
	CHECK(trims() == 1);
}

static void how_many_of_them(void)
{
	for (uintptr_t i = 0; i < POOLS; i++)
		hami_trim_add((CUmemoryPool)(8 + i));
	CHECK(hami_trim_knows_all());
	hami_trim_add((CUmemoryPool)(uintptr_t)4);
	CHECK(!hami_trim_knows_all());
	hami_trim_forked();
	CHECK(hami_trim_knows_all());
}

/* A pool may map a segment elsewhere between two looks. */
static void only_where_it_was(void)
{
	size_t count;
	struct hami_movable *list = hami_movable_list(SEGMENT, &count);
	CHECK(list && count == 1 && hami_movable_same(list));
	hami_movable_unmapped(ELSEWHERE, SEGMENT);
	map(AT);
	CHECK(!hami_movable_same(list));
	free(list);
}

int main(void)
{
	wherever_it_is_mapped();
	only_where_it_was();
	how_many_of_them();
	until_they_go();
	return 0;
}
