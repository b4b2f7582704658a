/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of what tells the application how much memory there is, and of managed memory. Device memory is
 * charged where libcuda asks the resource manager for it (ioctl.c); only managed memory is not asked for
 * there, as it can move to the host. It may all be on one device, whichever of those that the process sees, so all of
 * it is charged on each of them when it is allocated.
 */
#include <stdatomic.h>

#include "base/log.h"
#include "base/table.h"
#include "driver/access.h"
#include "driver/movable.h"
#include "hooks/mps.h"
#include "limits/charge.h"
#include "limits/hold.h"
#include "limits/known.h"
#include "limits/placeholder.h"
#include "limits/trim.h"
#include "region/process.h"

#define BLOCK (2ull << 20) /* the driver's unit of managed memory */

/* Managed allocations that were not freed. While there is none, the usual case, a free looks nothing up. */
static _Atomic uint64_t managed_count;

static size_t smaller(size_t a, uint64_t b)
{
	return a < b ? a : (size_t)b;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	CUresult result = real->cuMemGetInfo_v2(free_bytes, total_bytes);
	int slice = result == CUDA_SUCCESS && hami_region() ? hami_current_slice(real) : -1;
	if (slice < 0)
		return result;
	struct hami_view view;
	hami_region_view(hami_slice_region((unsigned int)slice), &view);
	if (total_bytes) /* one of the two may be NULL */
		*total_bytes = smaller(*total_bytes, view.limit);
	if (free_bytes)
		*free_bytes = smaller(*free_bytes, view.free);
	return result;
}

/* Returns the owner of managed memory that is made now: the current context, with which it goes. 0: not known. */
static uint64_t owner_of_managed(const struct real_cuda *real)
{
	CUcontext context;
	const int slice = hami_current_slice(real);
	if (slice < 0 || real->cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return 0;
	return hami_known_owner((unsigned int)slice, context);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	uint64_t charge = bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) / BLOCK * BLOCK;
	const uint32_t visible = hami_slice_count() > 1 ? hami_visible_slices() : 0;
	const uint32_t slices = visible ? visible : hami_only(0);
	if (hami_memory_charge(slices, charge))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real->cuMemAllocManaged(address, bytes, flags);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		hami_memory_lacking(slices, charge);
	if (result != CUDA_SUCCESS)
		hami_memory_release(slices, charge);
	else if (!hami_table_put((struct hami_entry){.key = *address,
						     .bytes = charge,
						     .owner = owner_of_managed(real),
						     .slices = slices}))
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
	else
		atomic_fetch_add_explicit(&managed_count, 1, memory_order_relaxed);
	return result;
}

/* Takes the entry out before the free: after it, another thread may get the same address. */
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	struct hami_entry managed = {0};
	hami_placeholder_end(); /* it would be waited for */
	hami_hold_enter(HAMI_HOLD_WORK);
	if (address && atomic_load_explicit(&managed_count, memory_order_relaxed))
		managed = hami_table_take(address);
	CUresult result = real->cuMemFree_v2(address);
	if (managed.key && result != CUDA_SUCCESS) {
		hami_table_put(managed);
	} else if (managed.key) {
		atomic_fetch_sub_explicit(&managed_count, 1, memory_order_relaxed);
		hami_memory_release((uint32_t)managed.slices, managed.bytes);
	}
	hami_hold_leave(HAMI_HOLD_WORK);
	return result;
}

/*
 * Refuses pools of managed memory (CUDA 13): they give memory that neither the resource manager nor
 * cuMemAllocManaged is asked for.
 */
#define POOL_AND(name, kind, after, ...)                                                                     \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name || (kind) == CU_MEM_ALLOCATION_TYPE_MANAGED)                                         \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	CUresult result = real->name(__VA_ARGS__);                                                           \
	after;                                                                                               \
	return result
#define POOL(name, kind, ...) POOL_AND(name, kind, (void)0, __VA_ARGS__)

static void note_pool(CUresult result, const CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	if (result == CUDA_SUCCESS && hami_movable_tracked() && properties &&
	    properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		hami_trim_add(*pool);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	POOL_AND(cuMemPoolCreate, properties ? properties->allocType : CU_MEM_ALLOCATION_TYPE_INVALID,
		 note_pool(result, pool, properties), pool, properties);
}

/* Forgets the pool before it is destroyed: after that, another one may have its place. */
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemPoolDestroy)
		return CUDA_ERROR_NOT_SUPPORTED;
	hami_hold_enter(HAMI_HOLD_WORK);
	if (hami_movable_tracked())
		hami_trim_remove(pool);
	CUresult result = real->cuMemPoolDestroy(pool);
	hami_hold_leave(HAMI_HOLD_WORK);
	return hami_mps_seen(result);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	POOL(cuMemGetDefaultMemPool, type, pool, location, type);
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	POOL(cuMemGetMemPool, type, pool, location, type);
}

/* The name from before CUDA 3.2, whose 32-bit sizes cannot express a slice. */
CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	(void)free_bytes, (void)total_bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}
