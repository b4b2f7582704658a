/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: physical memory is an anonymous file, so that one handle can be mapped in
 * several places and processes. The file's name carries its id, by which an importer finds the row in the
 * shared table.
 */
#include "vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_NAME "hami-sim-vmm-"

static struct physical *handles; /* guarded by sim.lock */

struct physical *vmm_find(CUmemGenericAllocationHandle handle)
{
	for (struct physical *p = handles; p; p = p->next)
		if ((CUmemGenericAllocationHandle)(uintptr_t)p == handle)
			return p;
	return NULL;
}

void vmm_release(struct physical *p)
{
	if (--p->references)
		return;
	if (p->imported) {
		sim_lock(&sim.view);
		sim_shared_leave(&sim.view, p->id);
		sim_unlock(&sim.view);
	} else {
		sim_memory_give(&p->memory, p->shared ? p->id : 0);
	}
	for (struct physical **at = &handles; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	close(p->fd);
	free(p);
}

static CUresult check_properties(const CUmemAllocationProp *p, uint32_t *gpu)
{
	if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    p->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_CHECK(sim_check_device(p->location.id));
	*gpu = sim.visible[p->location.id];
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
				       CUmemAllocationGranularity_flags option)
{
	SIM_ENTER(cuMemGetAllocationGranularity);
	uint32_t gpu;
	if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(check_properties(properties, &gpu));
	*granularity = FRAME_BYTES;
	return CUDA_SUCCESS;
}

static struct physical *add_handle(int fd, uint64_t id, uint32_t gpu, uint64_t bytes)
{
	struct physical *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->fd = fd;
	p->id = id;
	p->gpu = gpu;
	p->bytes = bytes;
	p->references = 1;
	p->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	p->next = handles;
	handles = p;
	return p;
}

/* With sim.lock held. */
static CUresult create(const struct device_memory *memory, const CUmemAllocationProp *properties,
		       CUmemGenericAllocationHandle *out)
{
	char name[64];
	sim_lock(&sim.view);
	uint64_t id = sim_shared_new_id(&sim.view);
	sim_unlock(&sim.view);
	snprintf(name, sizeof name, FILE_NAME "%" PRIu64, id);
	int fd = memfd_create(name, MFD_CLOEXEC);
	struct physical *p = NULL;
	if (fd >= 0 && ftruncate(fd, (off_t)memory->bytes) == 0)
		p = add_handle(fd, id, memory->gpu, memory->bytes);
	if (!p) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->memory = *memory;
	p->properties = *properties;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
		     const CUmemAllocationProp *properties, unsigned long long flags)
{
	SIM_ENTER(cuMemCreate);
	uint32_t gpu;
	if (!handle || !bytes || flags || bytes % FRAME_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(check_properties(properties, &gpu));
	struct device_memory memory;
	SIM_CHECK(sim_memory_take(&memory, gpu, bytes, MEMORY_PROGRAM));
	sim_process_lock();
	CUresult result = create(&memory, properties, handle);
	sim_process_unlock();
	if (result != CUDA_SUCCESS)
		sim_memory_give(&memory, 0);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	SIM_ENTER(cuMemRelease);
	sim_process_lock();
	struct physical *p = vmm_find(handle);
	if (p)
		vmm_release(p);
	sim_process_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
	SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
	sim_process_lock();
	struct physical *p = vmm_find(handle);
	if (p && out)
		*out = p->properties;
	sim_process_unlock();
	return p && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With sim.lock held. The row appears at the first export: most handles never leave the process. */
static CUresult export_fd(struct physical *p, int *out)
{
	if (!p->shared) {
		sim_lock(&sim.view);
		p->shared = sim_shared_make(&sim.view, p->gpu, p->bytes, p->id);
		sim_unlock(&sim.view);
		if (!p->shared)
			return CUDA_ERROR_OUT_OF_MEMORY;
		sim_memory_share(&p->memory, p->id);
	}
	*out = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	return *out >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER(cuMemExportToShareableHandle);
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	struct physical *p = vmm_find(handle);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (p && p->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = export_fd(p, out);
	sim_process_unlock();
	return result;
}

static CUresult id_of_file(int fd, uint64_t *id)
{
	char path[64], name[128];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, name, sizeof name - 1);
	if (n < 0)
		return CUDA_ERROR_INVALID_VALUE;
	name[n] = '\0';
	return sscanf(name, "/memfd:" FILE_NAME "%" SCNu64, id) == 1 ? CUDA_SUCCESS
								     : CUDA_ERROR_INVALID_VALUE;
}

/* With sim.lock held. A process that imports what it already has gets the same handle once more. */
static CUresult import(int fd, uint64_t id, CUmemGenericAllocationHandle *out)
{
	struct physical *p = handles;
	while (p && p->id != id)
		p = p->next;
	if (p) {
		p->references++;
	} else {
		uint32_t gpu;
		uint64_t bytes;
		sim_lock(&sim.view);
		int rc = sim_shared_join(&sim.view, id, &gpu, &bytes);
		sim_unlock(&sim.view);
		if (rc)
			return CUDA_ERROR_INVALID_VALUE;
		int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		p = own >= 0 ? add_handle(own, id, gpu, bytes) : NULL;
		if (!p)
			return CUDA_ERROR_OPERATING_SYSTEM;
		p->imported = true;
		p->shared = true;
	}
	*out = (CUmemGenericAllocationHandle)(uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
					CUmemAllocationHandleType type)
{
	SIM_ENTER(cuMemImportFromShareableHandle);
	uint64_t id;
	int fd = (int)(intptr_t)os_handle;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(id_of_file(fd, &id));
	sim_process_lock();
	CUresult result = import(fd, id, handle);
	sim_process_unlock();
	return result;
}

void sim_vmm_fork_child(void)
{
	handles = NULL;
	vmm_map_fork_child();
}
