/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the device can reach. With unified addressing both see it at one address. */
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

struct registered {
	uintptr_t base;
	size_t size;
	unsigned flags;
	const struct CUctx_st *context; /* with which it goes */
	struct registered *next;
};

static struct registered *registered; /* guarded by sim.lock */

static CUresult allocate(struct CUctx_st *c, void **out, size_t size, unsigned flags)
{
	if (!out || !size ||
	    flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
				CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_process_lock();
	struct region *r = region_take(round_up(size, FRAME_BYTES), PROT_READ | PROT_WRITE);
	if (r) {
		r->kind = REGION_HOST;
		r->size = size;
		r->device = c->device;
		r->context = c;
		r->flags = flags;
		*out = (void *)r->base;
	}
	sim_process_unlock();
	return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuMemHostAlloc, c);
	return allocate(c, out, size, flags);
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	SIM_ENTER_CONTEXT(cuMemAllocHost_v2, c);
	return allocate(c, out, size, 0);
}

CUresult cuMemFreeHost(void *address)
{
	SIM_ENTER_CONTEXT(cuMemFreeHost, c);
	sim_context_drain(c);
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool valid = r && r->kind == REGION_HOST && r->base == (uintptr_t)address;
	if (valid)
		region_give(r);
	sim_process_unlock();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct registered *find_registered(uintptr_t address)
{
	for (struct registered *r = registered; r; r = r->next)
		if (address >= r->base && address - r->base < r->size)
			return r;
	return NULL;
}

bool host_known(uintptr_t address, unsigned *flags)
{
	struct region *r = region_find(address);
	struct registered *mine = r ? NULL : find_registered(address);
	if (r && r->kind == REGION_HOST)
		*flags = r->flags;
	else if (mine)
		*flags = mine->flags;
	else
		return false;
	return true;
}

bool host_crosses(uintptr_t address, size_t size)
{
	const struct registered *r = find_registered(address), *end = find_registered(address + size - 1);
	return r && end && r != end;
}

void host_unregister_all(const struct CUctx_st *c)
{
	for (struct registered **p = &registered; *p;) {
		struct registered *r = *p;
		if (r->context != c) {
			p = &r->next;
			continue;
		}
		*p = r->next;
		free(r);
	}
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuMemHostRegister_v2, c);
	if (!address || !size || flags > 0xf)
		return CUDA_ERROR_INVALID_VALUE;
	struct registered *r = calloc(1, sizeof *r);
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*r = (struct registered){(uintptr_t)address, size, flags, c, NULL};
	sim_process_lock();
	bool known = find_registered(r->base) || find_registered(r->base + size - 1);
	if (!known) {
		r->next = registered;
		registered = r;
	}
	sim_process_unlock();
	if (!known)
		return CUDA_SUCCESS;
	free(r);
	return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void *address)
{
	SIM_ENTER_CONTEXT(cuMemHostUnregister, c);
	(void)c;
	CUresult result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	sim_process_lock();
	for (struct registered **p = &registered; *p; p = &(*p)->next)
		if ((*p)->base == (uintptr_t)address) {
			struct registered *r = *p;
			*p = r->next;
			free(r);
			result = CUDA_SUCCESS;
			break;
		}
	sim_process_unlock();
	return result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuMemHostGetDevicePointer_v2, c);
	unsigned of_memory;
	(void)c;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	bool known = host_known((uintptr_t)address, &of_memory);
	sim_process_unlock();
	*out = (CUdeviceptr)(uintptr_t)address;
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *address)
{
	SIM_ENTER_CONTEXT(cuMemHostGetFlags, c);
	(void)c;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	bool known = host_known((uintptr_t)address, flags);
	sim_process_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_host_fork_child(void)
{
	registered = NULL;
}
