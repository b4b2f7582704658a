/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation. Since a process's work on a GPU runs in one order, memory that is freed in one
 * stream can be used by the next allocation in any. What a pool holds beyond its release threshold is
 * returned at the next synchronisation.
 */
#include "memory.h"

#include <stdlib.h>

enum { POOL_MAGIC = 0x504f4f4c };

struct CUmemPoolHandle_st {
	struct heap heap; /* first: pool_of */
	uint32_t magic;
	bool is_default;
	bool destroyed; /* what is still allocated from it lives on */
	uint64_t threshold;
	int reuse[4];
	struct CUmemPoolHandle_st *next;
};

static struct {
	struct CUmemPoolHandle_st *all; /* guarded by sim.lock */
	struct CUmemPoolHandle_st *defaults[SIM_MAX_GPUS], *current[SIM_MAX_GPUS];
	_Atomic bool dirty; /* something was freed since the last settling */
} pools;

CUmemoryPool pool_of(struct heap *heap)
{
	return heap->keep ? (CUmemoryPool)heap : NULL;
}

/* With sim.lock held. */
static struct CUmemPoolHandle_st *create(uint32_t gpu, bool is_default)
{
	struct CUmemPoolHandle_st *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->magic = POOL_MAGIC;
	p->is_default = is_default;
	p->heap = (struct heap){.device = gpu, .block_bytes = POOL_BLOCK_BYTES, .keep = true};
	for (int i = 1; i < 4; i++)
		p->reuse[i] = 1;
	p->next = pools.all;
	pools.all = p;
	return p;
}

static struct CUmemPoolHandle_st *default_of(uint32_t gpu)
{
	if (!pools.defaults[gpu])
		pools.defaults[gpu] = create(gpu, true);
	return pools.defaults[gpu];
}

static struct CUmemPoolHandle_st *current_of(uint32_t gpu)
{
	return pools.current[gpu] ? pools.current[gpu] : default_of(gpu);
}

static bool valid(CUmemoryPool pool)
{
	return pool && pool->magic == POOL_MAGIC && !pool->destroyed;
}

/* With sim.lock held: a destroyed pool goes when the last of its memory has come back. */
static void collect(void)
{
	for (struct CUmemPoolHandle_st **p = &pools.all; *p;) {
		struct CUmemPoolHandle_st *pool = *p;
		if (!pool->destroyed || pool->heap.used) {
			p = &pool->next;
			continue;
		}
		*p = pool->next;
		heap_destroy(&pool->heap);
		pool->magic = 0;
		free(pool);
	}
}

void sim_pools_mark(void)
{
	atomic_store_explicit(&pools.dirty, true, memory_order_relaxed);
}

void sim_pools_settle(void)
{
	if (!atomic_load_explicit(&pools.dirty, memory_order_relaxed))
		return;
	sim_process_lock();
	atomic_store(&pools.dirty, false);
	for (struct CUmemPoolHandle_st *p = pools.all; p; p = p->next)
		if (p->heap.reserved > p->threshold)
			heap_trim(&p->heap, p->threshold);
	collect();
	sim_process_unlock();
}

void sim_pools_fork_child(void)
{
	pools.all = NULL;
	for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
		pools.defaults[i] = pools.current[i] = NULL;
}

static CUresult allocate(CUmemoryPool pool, CUdeviceptr *out, size_t size, CUstream stream)
{
	struct CUstream_st *s;
	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_stream(stream, &s));
	if (s->capturing)
		return sim_capture_alloc(s, out, size);
	sim_process_lock();
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		pool = current_of(s->context->device);
	if (valid(pool))
		result = heap_alloc(&pool->heap, size, out);
	sim_process_unlock();
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	SIM_ENTER(cuMemAllocAsync);
	return allocate(NULL, out, size, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
	SIM_ENTER(cuMemAllocFromPoolAsync);
	return pool ? allocate(pool, out, size, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuMemFreeAsync);
	SIM_CHECK(sim_stream(stream, &s));
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->capturing)
		return sim_capture_free(s, address);
	sim_process_lock();
	CUresult result = heap_free(address);
	sim_process_unlock();
	sim_pools_mark();
	return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	SIM_ENTER(cuMemPoolCreate);
	if (!pool || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_CHECK(sim_check_device(properties->location.id));
	sim_process_lock();
	*pool = create(sim.visible[properties->location.id], false);
	sim_process_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	SIM_ENTER(cuMemPoolDestroy);
	sim_process_lock();
	bool ok = valid(pool) && !pool->is_default;
	if (ok) {
		pool->destroyed = true;
		pool->threshold = 0;
		for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
			if (pools.current[i] == pool)
				pools.current[i] = NULL;
		heap_trim(&pool->heap, 0);
		collect();
	}
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	SIM_ENTER(cuMemPoolTrimTo);
	sim_process_lock();
	bool ok = valid(pool);
	if (ok)
		heap_trim(&pool->heap, keep);
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, struct CUmemPoolHandle_st *(*which)(uint32_t))
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	*pool = which(sim.visible[device]);
	sim_process_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_ENTER(cuDeviceGetDefaultMemPool);
	return get_pool(pool, device, default_of);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_ENTER(cuDeviceGetMemPool);
	return get_pool(pool, device, current_of);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	SIM_ENTER(cuDeviceSetMemPool);
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	bool ok = valid(pool) && pool->heap.device == sim.visible[device];
	if (ok)
		pools.current[sim.visible[device]] = pool;
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_attribute(struct CUmemPoolHandle_st *p, CUmemPool_attribute attribute, void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = p->reuse[attribute];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = p->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = p->heap.reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = p->heap.reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = p->heap.used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = p->heap.used_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER(cuMemPoolGetAttribute);
	sim_process_lock();
	CUresult result =
		valid(pool) && value ? get_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
	sim_process_unlock();
	return result;
}

/* The two high-water marks can only be set back, to 0. */
static CUresult set_attribute(struct CUmemPoolHandle_st *p, CUmemPool_attribute attribute, const void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		p->reuse[attribute] = *(const int *)value != 0;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(const cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		if (*(const cuuint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		p->heap.reserved_high = p->heap.reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const cuuint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		p->heap.used_high = p->heap.used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER(cuMemPoolSetAttribute);
	sim_process_lock();
	CUresult result =
		valid(pool) && value ? set_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
	sim_process_unlock();
	sim_pools_mark();
	return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *accesses, size_t count)
{
	SIM_ENTER(cuMemPoolSetAccess);
	sim_process_lock();
	bool ok = valid(pool) && (accesses || !count);
	sim_process_unlock();
	for (size_t i = 0; ok && i < count; i++)
		ok = sim_check_device(accesses[i].location.id) == CUDA_SUCCESS;
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	SIM_ENTER(cuMemPoolGetAccess);
	sim_process_lock();
	bool ok = valid(pool) && flags && location;
	sim_process_unlock();
	if (!ok)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return sim_check_device(location->id);
}
