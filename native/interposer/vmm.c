/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management. Physical memory is held by its handle's references and by its mappings; the
 * driver takes it back when both are gone, and so does the charge. Handles that were imported are not in the
 * table: their memory is charged to the process that made it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "interposer.h"
#include "table.h"

struct physical {
	uint64_t bytes;
	uint64_t handle;
	unsigned int references, mappings;
	struct physical *next;
};

static struct {
	pthread_mutex_t lock;
	struct physical *buckets[1024];
} handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct physical **bucket(uint64_t handle)
{
	return &handles.buckets[(handle * 0x9e3779b97f4a7c15u) >> 54];
}

/* handles.lock is held. */
static struct physical *find(uint64_t handle)
{
	struct physical *p = *bucket(handle);
	while (p && p->handle != handle)
		p = p->next;
	return p;
}

/* handles.lock is held. A handle without references can be reused by the driver, so it is no longer found. */
static void unlist(struct physical *gone)
{
	struct physical **link = bucket(gone->handle);
	while (*link && *link != gone)
		link = &(*link)->next;
	if (*link)
		*link = gone->next;
}

/* handles.lock is held. The bytes to release: 0 while something still holds the memory. */
static uint64_t drop_if_unused(struct physical *p)
{
	if (p->references || p->mappings)
		return 0;
	uint64_t bytes = p->bytes;
	free(p);
	return bytes;
}

static void remember(uint64_t handle, uint64_t bytes)
{
	struct physical *p = malloc(sizeof *p);
	if (!p) {
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
		return;
	}
	*p = (struct physical){.bytes = bytes, .handle = handle, .references = 1};
	pthread_mutex_lock(&handles.lock);
	p->next = *bucket(handle);
	*bucket(handle) = p;
	pthread_mutex_unlock(&handles.lock);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
			     const CUmemAllocationProp *prop, unsigned long long flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemCreate)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return real->cuMemCreate(handle, bytes, prop, flags);
	CUresult result = hami_take(bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = real->cuMemCreate(handle, bytes, prop, flags);
	if (result == CUDA_SUCCESS)
		remember(*handle, bytes);
	else
		hami_region_release(hami_region(), HAMI_KIND_DATA, bytes);
	return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemRelease)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* Counted down first: once the driver has let go, another thread may get the same handle. */
	pthread_mutex_lock(&handles.lock);
	struct physical *p = find(handle);
	if (p && --p->references == 0)
		unlist(p);
	pthread_mutex_unlock(&handles.lock);
	CUresult result = real->cuMemRelease(handle);
	if (!p)
		return result;
	pthread_mutex_lock(&handles.lock);
	uint64_t bytes = 0;
	if (result == CUDA_SUCCESS) {
		bytes = drop_if_unused(p);
	} else if (p->references++ == 0) {
		p->next = *bucket(handle);
		*bucket(handle) = p;
	}
	pthread_mutex_unlock(&handles.lock);
	hami_region_release(hami_region(), HAMI_KIND_DATA, bytes);
	return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemRetainAllocationHandle)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = real->cuMemRetainAllocationHandle(handle, address);
	if (result == CUDA_SUCCESS) {
		pthread_mutex_lock(&handles.lock);
		struct physical *p = find(*handle);
		if (p)
			p->references++;
		pthread_mutex_unlock(&handles.lock);
	}
	return result;
}

/* A mapping's entry in the table carries its length (not a charge) and the physical memory as its owner. */
CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
			  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemMap)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&handles.lock);
	struct physical *p = find(handle);
	if (p)
		p->mappings++;
	pthread_mutex_unlock(&handles.lock);
	CUresult result = real->cuMemMap(address, bytes, offset, handle, flags);
	if (p && result == CUDA_SUCCESS) {
		if (!hami_table_put((struct hami_entry){.key = address, .bytes = bytes, .owner = p}))
			hami_log(
				0,
				"no memory to remember a mapping; it stays charged until the process ends\n");
	} else if (p) {
		pthread_mutex_lock(&handles.lock);
		p->mappings--;
		pthread_mutex_unlock(&handles.lock);
	}
	return result;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuMemUnmap)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = real->cuMemUnmap(address, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	/* One call may undo several mappings that lie side by side. */
	for (CUdeviceptr at = address; at < address + bytes;) {
		struct hami_entry entry = hami_table_take(at);
		if (!entry.key)
			break;
		at += entry.bytes;
		struct physical *p = entry.owner;
		pthread_mutex_lock(&handles.lock);
		p->mappings--;
		uint64_t released = drop_if_unused(p);
		pthread_mutex_unlock(&handles.lock);
		hami_region_release(hami_region(), HAMI_KIND_DATA, released);
	}
	return result;
}
