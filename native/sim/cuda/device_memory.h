/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as the driver has it: an object of the resource manager, which the kernel charges to this process,
 * and which is mapped where the program sees it. Where no simulated kernel answers libcuda counts by itself and maps
 * nothing. All functions may be called with or without sim.lock held.
 */
#ifndef SIM_DEVICE_MEMORY_H
#define SIM_DEVICE_MEMORY_H
#include "sim_cuda.h"

struct device_memory {
	uint64_t bytes; /* 0: none */
	uint64_t asked; /* of the kernel, which makes whole pages of it */
	uint32_t gpu;
	uint32_t object; /* its handle; 0: counted by libcuda */
	uint32_t fabric; /* the handle by which other GPUs reach it; 0: none */
};

enum memory_use {
	MEMORY_PROGRAM, /* what the program asked for */
	MEMORY_MANAGED, /* that the kernel does not give: counted here, and not asked for */
	MEMORY_CONTEXT, /* under no limit of MPS: it is the server's */
};

/* CUDA_ERROR_OUT_OF_MEMORY when the GPU, or a limit, has no room for it. */
CUresult sim_memory_take(struct device_memory *out, uint32_t gpu, uint64_t bytes, enum memory_use use);
/* The same for `asked` bytes, which are `bytes` in whole pages. */
CUresult sim_memory_take_pages(struct device_memory *out, uint32_t gpu, uint64_t bytes, uint64_t asked,
			       enum memory_use use);
/* With its last object. `shared_id`: its row in the state's table of shared allocations, or 0. */
void sim_memory_give(struct device_memory *memory, uint64_t shared_id);
/* The memory is now the shared allocation with this id. */
void sim_memory_share(const struct device_memory *memory, uint64_t id);

/* Reserves addresses for mappings, and gives them back with all mappings in them. */
bool sim_range_make(uintptr_t base, size_t bytes);
void sim_range_free(uintptr_t base, size_t bytes);
/* The memory's first `bytes` are seen at base, in a range. */
bool sim_memory_map(const struct device_memory *memory, uintptr_t base, size_t bytes);
void sim_memory_unmap(const struct device_memory *memory, uintptr_t base, size_t bytes);

#endif
