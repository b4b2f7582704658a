/* SPDX-License-Identifier: Apache-2.0 */
/* What an address is. */
#include "memory.h"

#include <string.h>

struct description {
	bool device; /* or the host's */
	uintptr_t base;
	size_t size;
	struct region *region; /* NULL for registered host memory */
};

/* With sim.lock held. */
static bool describe(CUdeviceptr address, struct description *d)
{
	unsigned flags;
	d->device = heap_range(address, &d->base, &d->size, &d->region) == CUDA_SUCCESS;
	if (d->device)
		return true;
	if (!host_known((uintptr_t)address, &flags))
		return false;
	d->region = region_find((uintptr_t)address);
	d->base = d->region ? d->region->base : (uintptr_t)address;
	d->size = d->region ? d->region->size : 1;
	return true;
}

static int ordinal_of(uint32_t gpu)
{
	for (uint32_t i = 0; i < sim.visible_count; i++)
		if (sim.visible[i] == gpu)
			return (int)i;
	return -1;
}

static CUresult context_of(const struct region *r, CUcontext *out)
{
	*out = r ? r->context : NULL;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(void *out, CUpointer_attribute attribute, CUdeviceptr address,
		    const struct description *d)
{
	const struct region *r = d->region;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return context_of(r, out);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)out = d->device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)out = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (d->device && !(r && r->managed))
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)out = (void *)(uintptr_t)address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)out = r ? r->buffer_id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)out = r && r->managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = r ? ordinal_of(r->device) : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)out = r && r->heap && !r->heap->keep;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)out = d->base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)out = d->size;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)out = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)out = r && r->kind == REGION_RESERVED
						     ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
						     : CU_MEM_HANDLE_TYPE_NONE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(CUmemAccess_flags *)out = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)out = r && r->heap ? pool_of(r->heap) : NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address)
{
	SIM_ENTER(cuPointerGetAttribute);
	struct description d = {0};
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	CUresult result = describe(address, &d) ? get(out, attribute, address, &d) : CUDA_ERROR_INVALID_VALUE;
	sim_process_unlock();
	return result;
}

/* An address that is nobody's gets zeroes, and so does an attribute that it does not have. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **out,
				CUdeviceptr address)
{
	SIM_ENTER(cuPointerGetAttributes);
	struct description d = {0};
	if (!count || !attributes || !out)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	bool known = describe(address, &d);
	for (unsigned i = 0; i < count; i++) {
		uint64_t value = 0;
		bool wide = attributes[i] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
			    attributes[i] != CU_POINTER_ATTRIBUTE_IS_MANAGED &&
			    attributes[i] != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
			    attributes[i] != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
			    attributes[i] != CU_POINTER_ATTRIBUTE_MAPPED &&
			    attributes[i] != CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
		if (known && get(&value, attributes[i], address, &d) != CUDA_SUCCESS)
			value = 0;
		if (!known && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			value = (uint32_t)CU_DEVICE_INVALID;
		memcpy(out[i], &value, wide ? sizeof value : sizeof(uint32_t));
	}
	sim_process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	SIM_ENTER(cuPointerSetAttribute);
	struct description d = {0};
	sim_process_lock();
	bool known = describe(address, &d);
	sim_process_unlock();
	if (!value || !known)
		return CUDA_ERROR_INVALID_VALUE;
	/* Copies are always synchronous with respect to the memory: there is nothing to set. */
	return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
