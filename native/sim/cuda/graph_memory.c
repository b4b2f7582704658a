/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include <stdlib.h>

struct amounts {
	uint64_t used, used_high, reserved, reserved_high;
};

static struct {
	struct graph_memory *all; /* guarded by sim.lock */
	struct amounts gpu[SIM_MAX_GPUS];
} pool;

static void add(uint64_t *now, uint64_t *high, uint64_t bytes)
{
	*now += bytes;
	if (*now > *high)
		*high = *now;
}

CUresult graph_memory_make(uint32_t gpu, size_t size, struct graph_memory **out)
{
	if (!size || size > sim_cuda_total(&sim.view.machine.gpu[gpu]))
		return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	struct graph_memory *m = calloc(1, sizeof *m);
	struct region *r = m ? region_take(round_up(size, FRAME_BYTES), PROT_READ | PROT_WRITE) : NULL;
	if (!r) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->kind = REGION_GRAPH;
	r->size = size;
	r->device = gpu;
	*m = (struct graph_memory){.region = r, .gpu = gpu, .references = 1, .next = pool.all};
	pool.all = m;
	*out = m;
	return CUDA_SUCCESS;
}

struct graph_memory *graph_memory_find(CUdeviceptr address)
{
	for (struct graph_memory *m = pool.all; m; m = m->next)
		if (m->region->base == address)
			return m;
	return NULL;
}

CUresult graph_memory_use(struct graph_memory *m)
{
	struct amounts *amounts = &pool.gpu[m->gpu];
	if (m->in_use)
		return CUDA_ERROR_INVALID_VALUE; /* launched again before it was freed */
	if (!m->charged) {
		SIM_CHECK(sim_memory_take(&m->region->memory, m->gpu, m->region->bytes, MEMORY_PROGRAM));
		if (!region_map(m->region)) {
			sim_memory_give(&m->region->memory, 0);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		m->charged = true;
		add(&amounts->reserved, &amounts->reserved_high, m->region->bytes);
	}
	m->in_use = true;
	add(&amounts->used, &amounts->used_high, m->region->bytes);
	return CUDA_SUCCESS;
}

static void uncharge(struct graph_memory *m)
{
	if (m->charged) {
		region_unmap(m->region);
		sim_memory_give(&m->region->memory, 0);
		madvise((void *)m->region->base, m->region->bytes, MADV_DONTNEED);
		pool.gpu[m->gpu].reserved -= m->region->bytes;
	}
	m->charged = false;
}

static void collect(struct graph_memory *m)
{
	if (m->references || m->in_use)
		return;
	uncharge(m);
	for (struct graph_memory **p = &pool.all; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	region_give(m->region);
	free(m);
}

CUresult graph_memory_free(struct graph_memory *m)
{
	if (!m->in_use)
		return CUDA_ERROR_INVALID_VALUE;
	m->in_use = false;
	pool.gpu[m->gpu].used -= m->region->bytes;
	collect(m);
	return CUDA_SUCCESS;
}

void graph_memory_drop(struct graph_memory *m)
{
	m->references--;
	collect(m);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	SIM_ENTER(cuDeviceGraphMemTrim);
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	for (struct graph_memory *m = pool.all; m; m = m->next)
		if (m->gpu == sim.visible[device] && !m->in_use)
			uncharge(m);
	sim_process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_ENTER(cuDeviceGetGraphMemAttribute);
	SIM_CHECK(sim_check_device(device));
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	struct amounts amounts = pool.gpu[sim.visible[device]];
	sim_process_unlock();
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = amounts.used;
		return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = amounts.used_high;
		return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = amounts.reserved;
		return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = amounts.reserved_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_ENTER(cuDeviceSetGraphMemAttribute);
	SIM_CHECK(sim_check_device(device));
	if (!value || *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE; /* the two high-water marks can only be set back */
	CUresult result = CUDA_SUCCESS;
	sim_process_lock();
	struct amounts *amounts = &pool.gpu[sim.visible[device]];
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		amounts->used_high = amounts->used;
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		amounts->reserved_high = amounts->reserved;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_process_unlock();
	return result;
}

void sim_graph_fork_child(void)
{
	pool.all = NULL;
	for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
		pool.gpu[i] = (struct amounts){0};
}
