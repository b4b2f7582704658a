/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charges, and what the application is told of the memory there is. Device memory is charged where libcuda
 * asks the resource manager for it (rm.c); only managed memory is not asked for there, as it can move to the
 * host. It may all be on the device, so all of it is charged when it is allocated.
 */
#include <errno.h>
#include <stdatomic.h>

#include "interposer.h"
#include "table.h"

#define BLOCK (2ull << 20) /* the driver's unit of managed memory */

/* Managed allocations alive: while there is none, which is nearly always, a free looks nothing up. */
static _Atomic uint64_t managed_count;

int hami_memory_charge(uint64_t bytes)
{
	struct hami_region *region = hami_region();
	int rc = region ? hami_region_charge(region, bytes) : -EPERM;
	if (rc == -EPERM && hami_is_secure())
		hami_refuse_secure();
	else if (rc == -ENOMEM)
		hami_log(2, "a request for %llu bytes does not fit the limit\n", (unsigned long long)bytes);
	else if (rc == -EUSERS)
		hami_log(0,
			 "more than %u processes or %u steps of this job use the GPU at once, so the request "
			 "is "
			 "refused\n",
			 HAMI_USAGE_SLOT_COUNT, HAMI_USAGE_STEP_COUNT);
	else if (rc)
		hami_log(0, "device memory cannot be accounted for (error %d), so the request is refused\n",
			 -rc);
	return rc;
}

void hami_memory_release(uint64_t bytes)
{
	if (hami_region())
		hami_region_release(hami_region(), bytes);
}

void hami_memory_lacking(uint64_t bytes)
{
	if (hami_region())
		hami_region_lacking(hami_region());
	hami_log(1,
		 "the limits allow %llu bytes more, and the driver has not as much: others hold the GPU's "
		 "memory\n",
		 (unsigned long long)bytes);
}

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
	if (result != CUDA_SUCCESS || !hami_region())
		return result;
	struct hami_view view;
	hami_region_view(hami_region(), &view);
	*total_bytes = smaller(*total_bytes, view.limit);
	*free_bytes = smaller(*free_bytes, view.free);
	return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	uint64_t charge = bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) / BLOCK * BLOCK;
	if (hami_memory_charge(charge))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real->cuMemAllocManaged(address, bytes, flags);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		hami_memory_lacking(charge);
	if (result != CUDA_SUCCESS)
		hami_memory_release(charge);
	else if (!hami_table_put((struct hami_entry){.key = *address, .bytes = charge}))
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
	else
		atomic_fetch_add_explicit(&managed_count, 1, memory_order_relaxed);
	return result;
}

/* Forgotten before it is freed: once the driver has let go, another thread may get the same address. */
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	struct hami_entry managed = {0};
	if (address && atomic_load_explicit(&managed_count, memory_order_relaxed))
		managed = hami_table_take(address);
	CUresult result = real->cuMemFree_v2(address);
	if (managed.key && result != CUDA_SUCCESS) {
		hami_table_put(managed);
	} else if (managed.key) {
		atomic_fetch_sub_explicit(&managed_count, 1, memory_order_relaxed);
		hami_memory_release(managed.bytes);
	}
	return result;
}

/*
 * Pools of managed memory (CUDA 13) would give memory that neither the resource manager nor cuMemAllocManaged
 * is asked for, so there are none.
 */
#define POOL(name, kind, ...)                                                                                \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name || (kind) == CU_MEM_ALLOCATION_TYPE_MANAGED)                                         \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	return real->name(__VA_ARGS__)

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	POOL(cuMemPoolCreate, properties ? properties->allocType : CU_MEM_ALLOCATION_TYPE_INVALID, pool,
	     properties);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	POOL(cuMemGetDefaultMemPool, type, pool, location, type);
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	POOL(cuMemGetMemPool, type, pool, location, type);
}

/* The name of before CUDA 3.2, with 32-bit sizes: programs that old would be told nonsense. */
CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	(void)free_bytes, (void)total_bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}
