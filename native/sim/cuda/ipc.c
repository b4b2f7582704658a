/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC. Memory that is offered to others is moved, in place, into a file under $HAMI_SIM/shared, which
 * whoever opens the handle maps too. The file goes with the last holder.
 */
#include "memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x4350494d4948ull /* "HIMIPC" */

/* What is in the 64 opaque bytes of a CUipcMemHandle. */
struct ticket {
	uint64_t magic, id, bytes, offset;
	uint32_t slot, reuse;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "ticket");

static struct region *opened; /* guarded by sim.lock; `flags` counts how often */

static int open_file(uint64_t id, int flags)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%.3000s/shared/%" PRIu64, sim.view.dir, id);
	int fd = open(path, flags | O_CLOEXEC, 0666);
	if (fd >= 0 && flags & O_CREAT)
		fchmod(fd, 0666);
	return fd;
}

/* The pages that have been written to; the rest of the file stays a hole. */
static bool copy_resident(const struct region *r, int fd)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *resident = malloc(r->bytes / page);
	bool ok = resident && mincore((void *)r->base, r->bytes, resident) == 0;
	for (size_t i = 0; ok && i < r->bytes / page; i++)
		if (resident[i] & 1)
			ok = pwrite(fd, (const char *)r->base + i * page, page, (off_t)(i * page)) ==
			     (ssize_t)page;
	free(resident);
	return ok;
}

static bool back_by_file(struct region *r, uint64_t id)
{
	int fd = open_file(id, O_RDWR | O_CREAT | O_EXCL);
	if (fd < 0)
		return false;
	bool ok = ftruncate(fd, (off_t)r->bytes) == 0 && copy_resident(r, fd) &&
		  mmap((void *)r->base, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
			  MAP_FAILED;
	close(fd);
	if (!ok)
		sim_unlink_shared(&sim.view, id);
	return ok;
}

/* With sim.lock held. */
static CUresult offer(struct region *r)
{
	if (r->shared_id)
		return CUDA_SUCCESS;
	sim_lock(&sim.view);
	uint64_t id = sim_shared_new_id(&sim.view);
	sim_unlock(&sim.view);
	if (!back_by_file(r, id))
		return CUDA_ERROR_OPERATING_SYSTEM;
	r->shared_mapped = true;
	sim_lock(&sim.view);
	bool shared = sim_shared_make(&sim.view, r->device, r->bytes, id);
	sim_unlock(&sim.view);
	if (!shared) {
		sim_unlink_shared(&sim.view, id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->shared_id = id;
	sim_memory_share(&r->memory, id);
	return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	SIM_ENTER(cuIpcGetMemHandle);
	uintptr_t base;
	size_t size;
	struct region *r;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (heap_range(address, &base, &size, &r) == CUDA_SUCCESS && r->heap && !r->heap->keep && !r->managed)
		result = offer(r);
	if (result == CUDA_SUCCESS) {
		struct ticket ticket = {.magic = IPC_MAGIC,
					.id = r->shared_id,
					.bytes = r->bytes,
					.offset = base - r->base,
					.slot = sim.view.slot,
					.reuse = sim.view.state->slot[sim.view.slot].reuse};
		memset(handle, 0, sizeof *handle);
		memcpy(handle, &ticket, sizeof ticket);
	}
	sim_process_unlock();
	return result;
}

static struct region *map_file(const struct ticket *ticket, uint32_t gpu)
{
	int fd = open_file(ticket->id, O_RDWR);
	struct region *r = fd >= 0 ? region_take(ticket->bytes, PROT_NONE) : NULL;
	if (r && mmap((void *)r->base, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
			 MAP_FAILED) {
		region_give(r);
		r = NULL;
	}
	if (r) {
		r->kind = REGION_IPC;
		r->size = r->bytes;
		r->device = gpu;
		r->shared_id = ticket->id;
	}
	if (fd >= 0)
		close(fd);
	return r;
}

/* With sim.lock held. */
static CUresult open_ticket(const struct ticket *ticket, struct CUctx_st *c, CUdeviceptr *out)
{
	for (struct region *r = opened; r; r = r->next)
		if (r->shared_id == ticket->id) {
			r->flags++;
			*out = r->base + ticket->offset;
			return CUDA_SUCCESS;
		}
	uint32_t gpu;
	uint64_t bytes;
	sim_lock(&sim.view);
	int rc = sim_shared_join(&sim.view, ticket->id, &gpu, &bytes);
	sim_unlock(&sim.view);
	if (rc || bytes != ticket->bytes)
		return CUDA_ERROR_MAP_FAILED;
	struct region *r = map_file(ticket, gpu);
	if (!r) {
		sim_lock(&sim.view);
		sim_shared_leave(&sim.view, ticket->id);
		sim_unlock(&sim.view);
		return CUDA_ERROR_MAP_FAILED;
	}
	r->context = c;
	r->flags = 1;
	r->next = opened;
	opened = r;
	*out = r->base + ticket->offset;
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	struct CUctx_st *c;
	struct ticket ticket;
	SIM_CHECK(sim_context(&c));
	memcpy(&ticket, &handle, sizeof ticket);
	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || ticket.magic != IPC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket.slot == sim.view.slot && ticket.reuse == sim.view.state->slot[sim.view.slot].reuse)
		return CUDA_ERROR_INVALID_CONTEXT; /* one's own memory cannot be opened */
	sim_process_lock();
	CUresult result = open_ticket(&ticket, c, out);
	sim_process_unlock();
	return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	SIM_ENTER(cuIpcOpenMemHandle);
	return open_handle(out, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	SIM_ENTER(cuIpcOpenMemHandle_v2);
	return open_handle(out, handle, flags);
}

/* With sim.lock held. */
static void close_region(struct region *r)
{
	if (--r->flags)
		return;
	for (struct region **p = &opened; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	sim_lock(&sim.view);
	sim_shared_leave(&sim.view, r->shared_id);
	sim_unlock(&sim.view);
	region_give(r);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	SIM_ENTER(cuIpcCloseMemHandle);
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool ok = r && r->kind == REGION_IPC;
	if (ok)
		close_region(r);
	sim_process_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_ipc_fork_child(void)
{
	opened = NULL;
}
