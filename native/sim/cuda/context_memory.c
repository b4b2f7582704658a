/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context takes of the device's memory for itself: local memory of threads, the heap of the device's malloc,
 * a workspace. Each is mapped, and no copy finds it by its address.
 */
#include "memory.h"

/* How the model's context_mib is divided. */
static uint64_t part(uint32_t gpu, int index)
{
	uint64_t total = sim_mib(sim.view.machine.gpu[gpu].context_mib);
	uint64_t local = total / 4 / FRAME_BYTES * FRAME_BYTES, heap = total >= sim_mib(32) ? sim_mib(8) : 0;
	const uint64_t parts[SIM_CONTEXT_OBJECTS] = {local, heap, total - local - heap};
	return parts[index];
}

static CUresult take(struct CUctx_st *c, uint64_t bytes, struct region **out)
{
	struct device_memory memory;
	SIM_CHECK(sim_memory_take(&memory, c->device, bytes, MEMORY_CONTEXT));
	struct region *r = region_take(round_up(bytes, FRAME_BYTES), PROT_READ | PROT_WRITE);
	if (!r) {
		sim_memory_give(&memory, 0);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->kind = REGION_CONTEXT;
	r->memory = memory;
	r->context = c;
	r->device = c->device;
	*out = r;
	return region_map(r) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_context_memory_take(struct CUctx_st *c)
{
	for (int i = 0; i < SIM_CONTEXT_OBJECTS; i++) {
		uint64_t bytes = part(c->device, i);
		CUresult result = bytes ? take(c, bytes, &c->own[i]) : CUDA_SUCCESS;
		if (result == CUDA_SUCCESS)
			continue;
		sim_context_memory_give(c);
		return result;
	}
	return CUDA_SUCCESS;
}

void sim_context_memory_give(struct CUctx_st *c)
{
	for (int i = 0; i < SIM_CONTEXT_OBJECTS; i++) {
		struct region *r = c->own[i];
		if (!r)
			continue;
		region_unmap(r);
		sim_memory_give(&r->memory, 0);
		region_give(r);
		c->own[i] = NULL;
	}
}
