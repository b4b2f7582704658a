/* SPDX-License-Identifier: Apache-2.0 */
/* Where physical memory is seen: reservations, mappings, access. */
#include "vmm.h"

#include <stdlib.h>

static struct mapping *mappings; /* guarded by sim.lock */

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wanted,
			     unsigned long long flags)
{
	SIM_ENTER(cuMemAddressReserve);
	(void)wanted; /* a hint */
	if (!out || !size || flags || size % FRAME_BYTES || (alignment & (alignment - 1)) ||
	    alignment > FRAME_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	struct region *r = region_take(size, PROT_NONE);
	if (r) {
		r->kind = REGION_RESERVED;
		r->size = size;
		*out = r->base;
	}
	if (r && !sim_range_make(r->base, size)) {
		region_give(r);
		r = NULL;
	}
	sim_process_unlock();
	return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool has_mappings(const struct region *r)
{
	for (struct mapping *m = mappings; m; m = m->next)
		if (m->region == r)
			return true;
	return false;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	SIM_ENTER(cuMemAddressFree);
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool ok =
		r && r->kind == REGION_RESERVED && r->base == address && r->size == size && !has_mappings(r);
	if (ok) {
		sim_range_free(r->base, size);
		region_give(r);
	}
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool overlaps(const struct mapping *m, uintptr_t address, size_t size)
{
	return address < m->address + m->bytes && m->address < address + size;
}

static CUresult map(struct region *r, uintptr_t address, size_t size, struct physical *p)
{
	if (!r || r->kind != REGION_RESERVED || size > r->base + r->bytes - address)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct mapping *m = mappings; m; m = m->next)
		if (overlaps(m, address, size))
			return CUDA_ERROR_INVALID_VALUE;
	struct mapping *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* First in the kernel: it opens the pages, which are closed until cuMemSetAccess. */
	if (!sim_memory_map(&p->memory, address, size) ||
	    mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*m = (struct mapping){mappings, r, address, size, p, false};
	mappings = m;
	p->references++;
	r->device = p->gpu;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	SIM_ENTER(cuMemMap);
	if (!size || size % FRAME_BYTES || address % FRAME_BYTES || offset || flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	struct physical *p = vmm_find(handle);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (p && size <= p->bytes)
		result = map(region_find((uintptr_t)address), (uintptr_t)address, size, p);
	sim_process_unlock();
	return result;
}

/* Of whole mappings only: [address, address + size) must begin and end where mappings do. */
static bool covered(uintptr_t address, size_t size)
{
	size_t mapped_bytes = 0;
	for (struct mapping *m = mappings; m; m = m->next) {
		if (!overlaps(m, address, size))
			continue;
		if (m->address < address || m->address + m->bytes > address + size)
			return false;
		mapped_bytes += m->bytes;
	}
	return mapped_bytes == size;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	SIM_ENTER(cuMemUnmap);
	sim_process_lock();
	bool ok = size && covered((uintptr_t)address, size);
	for (struct mapping **at = &mappings; ok && *at;) {
		struct mapping *m = *at;
		if (!overlaps(m, (uintptr_t)address, size)) {
			at = &m->next;
			continue;
		}
		sim_memory_unmap(&m->physical->memory, m->address, m->bytes);
		/* Over the mapping, so that no other thread's mmap gets the address in between. */
		if (mmap((void *)m->address, m->bytes, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
			ok = false;
			break;
		}
		*at = m->next;
		vmm_release(m->physical);
		free(m);
	}
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *accesses, size_t count)
{
	SIM_ENTER(cuMemSetAccess);
	if (!size || !accesses || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		SIM_CHECK(sim_check_device(accesses[i].location.id));
	int protection = accesses[count - 1].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
				 ? PROT_READ | PROT_WRITE
			 : accesses[count - 1].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
										      : PROT_NONE;
	sim_process_lock();
	bool ok = covered((uintptr_t)address, size) &&
		  mprotect((void *)(uintptr_t)address, size, protection) == 0;
	for (struct mapping *m = mappings; ok && m; m = m->next)
		if (overlaps(m, (uintptr_t)address, size))
			m->accessible = protection != PROT_NONE;
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool vmm_accessible(const struct region *region, uintptr_t address, size_t size)
{
	size_t mapped_bytes = 0;
	for (struct mapping *m = mappings; m; m = m->next) {
		if (m->region != region || !m->accessible || !overlaps(m, address, size))
			continue;
		uintptr_t from = m->address > address ? m->address : address;
		uintptr_t to =
			m->address + m->bytes < address + size ? m->address + m->bytes : address + size;
		mapped_bytes += to - from;
	}
	return mapped_bytes == size;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
	SIM_ENTER(cuMemGetAccess);
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(location->id));
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool accessible = r && r->kind == REGION_RESERVED && vmm_accessible(r, (uintptr_t)address, 1);
	sim_process_unlock();
	*flags = accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	SIM_ENTER(cuMemRetainAllocationHandle);
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	struct mapping *m = mappings;
	while (m && !overlaps(m, (uintptr_t)address, 1))
		m = m->next;
	if (m) {
		m->physical->references++;
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)m->physical;
	}
	sim_process_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void vmm_map_fork_child(void)
{
	mappings = NULL;
}
