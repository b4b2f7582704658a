/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated device memory is the process's own address space, reserved and not touched until it is used, so
 * that a device pointer is a host address and copies copy. Regions are multiples of 2 MiB at multiples of
 * 2 MiB; a table of 2 MiB frames finds the region of an address. A heap hands out pieces of regions:
 *
 *	up to half a block    in units of 512 bytes out of a block, and the GPU is charged when a block is made
 *	above                 in a region of its own, rounded up to 2 MiB
 *
 * A context's heap has blocks of 2 MiB and returns a block with its last piece, as the driver does for
 * cuMemAlloc. A memory pool's heap has blocks of 32 MiB and keeps what is freed until it is trimmed.
 *
 * All functions here are called with sim.lock held and take the shared mutex themselves.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H
#include "device_memory.h"

#include <sys/mman.h>

#define FRAME_BYTES ((size_t)2 << 20)
#define GRANULE_BYTES ((size_t)512)
#define POOL_BLOCK_BYTES ((size_t)32 << 20)

enum region_kind {
	REGION_BLOCK,    /* pieces of a heap */
	REGION_DEVICE,   /* one allocation of a heap */
	REGION_HOST,     /* cuMemHostAlloc */
	REGION_RESERVED, /* cuMemAddressReserve */
	REGION_IPC,      /* another process's, opened here */
	REGION_GRAPH,    /* an allocation node's */
	REGION_CONTEXT,  /* a context's own */
};

struct region {
	uintptr_t base;
	size_t bytes; /* of address space */
	size_t size;  /* as asked for; of a block, all of it */
	enum region_kind kind;
	uint32_t device;
	struct CUctx_st *context; /* NULL for a pool's */
	struct heap *heap;
	struct device_memory memory; /* that is mapped here; not of reservations and others' memory */
	unsigned flags;              /* of host memory */
	bool managed;                /* cuMemAllocManaged */
	bool touched;                /* something was copied into it */
	bool shared_mapped;          /* backed by a file that other processes open */
	uint64_t shared_id;          /* its row in the shared table, or 0 */
	uint64_t buffer_id;
	/* blocks only */
	uint64_t *used;   /* bit: granule taken */
	uint32_t *length; /* granules of the piece that starts here, or 0 */
	uint32_t granules, free_granules;
	struct region *next, *prev; /* in its heap, or in the list of spare regions */
};

/* Address space of bytes (a multiple of FRAME_BYTES), known to region_find. NULL when there is none. */
struct region *region_take(size_t bytes, int protection);
void region_give(struct region *region);
/* Maps the region's memory at its addresses; false when it cannot be. */
bool region_map(struct region *region);
/* The same away. Before the memory goes. */
void region_unmap(struct region *region);
/* The region that holds address, or NULL. */
struct region *region_find(uintptr_t address);

CUresult heap_alloc(struct heap *heap, size_t size, CUdeviceptr *out);
/* Frees the piece or region that starts at address, whichever heap it is of. */
CUresult heap_free(CUdeviceptr address);
/* The allocation that holds address. CUDA_ERROR_NOT_FOUND when none does. */
CUresult heap_range(CUdeviceptr address, uintptr_t *base, size_t *size, struct region **region);
/* Returns idle memory to the GPU until at most keep_bytes are reserved. */
void heap_trim(struct heap *heap, uint64_t keep_bytes);
/* Returns everything, also what is in use. */
void heap_destroy(struct heap *heap);

/* An allocation of its own, however small. */
CUresult heap_alloc_whole(struct heap *heap, size_t size, CUdeviceptr *out);

/* True for host memory that the device can reach, allocated or registered. */
bool host_known(uintptr_t address, unsigned *flags);
/* True for memory that begins in one registration and ends in another: an H200 (driver 580) copies none. */
bool host_crosses(uintptr_t address, size_t size);
/* Ends all registrations that were made in a context, as the driver does when it is destroyed. */
void host_unregister_all(const struct CUctx_st *c);

/* The pool whose heap this is, or NULL for a context's. */
CUmemoryPool pool_of(struct heap *heap);

/* True when all of the range in this reservation is mapped and may be accessed. */
bool vmm_accessible(const struct region *region, uintptr_t address, size_t size);

static inline size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}
#endif
