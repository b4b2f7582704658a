/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context takes of the device's memory for itself: stacks of threads, the heap of the device's malloc,
 * a workspace. Each is mapped, and no copy finds it by its address. The stacks follow CU_LIMIT_STACK_SIZE at once, as
 * on an H200 (driver 580), where they are 264 KiB for each byte of it.
 */
#include "memory.h"

/* With stacks of SIM_STACK_BYTES for each thread. */
static uint64_t stacks(uint32_t gpu)
{
	return sim_mib(sim.view.machine.gpu[gpu].context_mib) / 4 / FRAME_BYTES * FRAME_BYTES;
}

/* How the model's context_mib is divided. */
static uint64_t part(uint32_t gpu, int index)
{
	uint64_t total = sim_mib(sim.view.machine.gpu[gpu].context_mib);
	uint64_t heap = total >= sim_mib(32) ? sim_mib(8) : 0;
	const uint64_t parts[SIM_CONTEXT_OBJECTS] = {stacks(gpu), heap, total - stacks(gpu) - heap};
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

static void give(struct region *r)
{
	region_unmap(r);
	sim_memory_give(&r->memory, 0);
	region_give(r);
}

static void count(const struct CUctx_st *c, uint64_t taken, uint64_t given)
{
	sim_lock(&sim.view);
	sim.view.state->slot[sim.view.slot].gpu[c->device].context_bytes += taken - given;
	sim_unlock(&sim.view);
}

CUresult sim_context_stacks(struct CUctx_st *c, size_t limit)
{
	struct region **own = &c->own[0], *before = *own, *after = NULL;
	const uint64_t bytes = round_up(stacks(c->device) * limit / SIM_STACK_BYTES, FRAME_BYTES);
	if (bytes == (before ? before->bytes : 0))
		return CUDA_SUCCESS;
	CUresult result = bytes ? take(c, bytes, &after) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS) {
		if (after)
			give(after);
		return result;
	}
	count(c, bytes, before ? before->bytes : 0);
	if (before)
		give(before);
	*own = after;
	return CUDA_SUCCESS;
}

uint64_t sim_context_memory_bytes(const struct CUctx_st *c)
{
	uint64_t bytes = 0;
	for (int i = 0; i < SIM_CONTEXT_OBJECTS; i++)
		bytes += c->own[i] ? c->own[i]->memory.bytes : 0;
	return bytes;
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
		if (c->own[i])
			give(c->own[i]);
		c->own[i] = NULL;
	}
}
