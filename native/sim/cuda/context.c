/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"
#include "mps.h"

#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 32 };

/* What this thread has current. Void when a fork has happened since. */
static _Thread_local struct {
	uint32_t generation;
	int depth;
	struct CUctx_st *stack[STACK_DEPTH];
} thread;

static void refresh_thread(void)
{
	uint32_t generation = atomic_load_explicit(&sim.generation, memory_order_relaxed);
	if (thread.generation != generation) {
		thread.generation = generation;
		thread.depth = 0;
	}
}

static struct CUctx_st *top(void)
{
	refresh_thread();
	return thread.depth ? thread.stack[thread.depth - 1] : NULL;
}

bool sim_context_valid(const struct CUctx_st *context)
{
	for (const struct CUctx_st *c = sim.contexts; c; c = c->next)
		if (c == context)
			return c->magic == SIM_CONTEXT_MAGIC;
	return false;
}

/* Destroyed contexts stay allocated, so that a thread that still has one current learns it. */
CUresult sim_context(struct CUctx_st **out)
{
	struct CUctx_st *c = top();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (c->magic != SIM_CONTEXT_MAGIC)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*out = c;
	return CUDA_SUCCESS;
}

CUresult sim_check_device(CUdevice device)
{
	return device >= 0 && (uint32_t)device < sim.visible_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static void init_stream(struct CUstream_st *s, struct CUctx_st *context, unsigned flags)
{
	s->magic = SIM_STREAM_MAGIC;
	s->context = context;
	s->flags = flags;
	s->id = ++sim.next_id;
}

static void count_context(const struct CUctx_st *c, int change)
{
	sim_lock(&sim.view);
	struct sim_share *share = &sim.view.state->slot[sim.view.slot].gpu[c->device];
	share->contexts += (uint32_t)change;
	share->context_bytes += (uint64_t)change * sim_context_memory_bytes(c);
	sim_unlock(&sim.view);
}

/* With sim.lock held. The struct stays: threads may have it current. */
static void destroy(struct CUctx_st *c)
{
	c->magic = 0;
	for (struct CUctx_st **p = &sim.contexts; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	sim_channels_close(c);
	heap_destroy(&c->heap);
	heap_destroy(&c->arrays);
	host_unregister_all(c);
	count_context(c, -1);
	sim_context_memory_give(c);
	sim_line_end(c);
}

/* With sim.lock held. */
static CUresult create(CUdevice ordinal, unsigned flags, unsigned version, struct CUctx_st **out)
{
	uint32_t device = sim.visible[ordinal];
	SIM_CHECK(sim_mps_context());
	struct CUctx_st *c = calloc(1, sizeof *c);
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->device = device;
	CUresult result = sim_line_begin(c);
	if (result == CUDA_SUCCESS && (result = sim_context_memory_take(c)) != CUDA_SUCCESS)
		sim_line_end(c);
	if (result != CUDA_SUCCESS) {
		free(c);
		return result;
	}
	count_context(c, 1);
	c->magic = SIM_CONTEXT_MAGIC;
	pthread_mutex_init(&c->issuing, NULL);
	c->ordinal = ordinal;
	c->flags = flags;
	c->version = version;
	c->id = ++sim.next_id;
	c->heap = c->arrays = (struct heap){.device = device, .context = c, .block_bytes = FRAME_BYTES};
	c->arrays.opaque = true;
	init_stream(&c->legacy, c, CU_STREAM_DEFAULT);
	init_stream(&c->per_thread, c, CU_STREAM_DEFAULT);
	c->next = sim.contexts;
	sim.contexts = c;
	result = sim_channels_open(c);
	int code;
	if (sim.faults.count && faults_hit(&sim.faults, "sim_context_made", &code) && code)
		result = (CUresult)code;
	if (result == CUDA_SUCCESS)
		*out = c;
	else
		destroy(c);
	return result;
}

static CUresult create_and_push(CUcontext *out, unsigned flags, CUdevice device, unsigned version)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	refresh_thread();
	if (thread.depth == STACK_DEPTH)
		return CUDA_ERROR_UNKNOWN;
	sim_process_lock();
	CUresult result = create(device, flags, version, out);
	sim_process_unlock();
	if (result == CUDA_SUCCESS)
		thread.stack[thread.depth++] = *out;
	return result;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	SIM_ENTER(cuCtxCreate_v2);
	return create_and_push(context, flags, device, 3020);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinity_count,
			unsigned int flags, CUdevice device)
{
	SIM_ENTER(cuCtxCreate_v3);
	if (affinity_count < 0 || (affinity_count && !affinity))
		return CUDA_ERROR_INVALID_VALUE;
	if (affinity_count)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY; /* only MPS clients can have it */
	return create_and_push(context, flags, device, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
			CUdevice device)
{
	SIM_ENTER(cuCtxCreate_v4);
	if (parameters && parameters->execAffinityParams)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (parameters && parameters->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create_and_push(context, flags, device, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	SIM_ENTER(cuCtxDestroy_v2);
	sim_process_lock();
	bool valid = context && sim_context_valid(context) && !context->primary;
	sim_process_unlock();
	if (!valid)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_context_drain(context);
	sim_process_lock();
	if (context->magic == SIM_CONTEXT_MAGIC)
		destroy(context);
	sim_process_unlock();
	if (top() == context)
		thread.depth--;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	SIM_ENTER(cuCtxPushCurrent_v2);
	refresh_thread();
	sim_process_lock();
	bool valid = context && sim_context_valid(context);
	sim_process_unlock();
	if (!valid || thread.depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread.stack[thread.depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	SIM_ENTER(cuCtxPopCurrent_v2);
	struct CUctx_st *c = top();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread.depth--;
	if (context)
		*context = c;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	SIM_ENTER(cuCtxSetCurrent);
	refresh_thread();
	if (!context) {
		thread.depth -= thread.depth > 0;
		return CUDA_SUCCESS;
	}
	sim_process_lock();
	bool valid = sim_context_valid(context);
	sim_process_unlock();
	if (!valid)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread.depth += thread.depth == 0;
	thread.stack[thread.depth - 1] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	SIM_ENTER(cuCtxGetCurrent);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = top();
	return CUDA_SUCCESS;
}

CUresult sim_primary_retain(CUcontext *context, CUdevice device)
{
	SIM_CHECK(sim_check_device(device));
	CUresult result = CUDA_SUCCESS;
	sim_process_lock();
	struct primary *p = &sim.primary[device];
	if (!p->context) {
		result = create(device, p->flags, 3020, &p->context);
		if (result == CUDA_SUCCESS)
			p->context->primary = true;
	}
	if (result == CUDA_SUCCESS) {
		p->references++;
		*context = p->context;
	}
	sim_process_unlock();
	return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	SIM_ENTER(cuDevicePrimaryCtxRetain);
	return context ? sim_primary_retain(context, device) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_primary_end(CUdevice device, bool reset)
{
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	struct primary *p = &sim.primary[device];
	struct CUctx_st *c = NULL;
	CUresult result = CUDA_SUCCESS;
	if (!reset && !p->references)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (reset || --p->references == 0)
		c = p->context;
	sim_process_unlock();
	if (!c)
		return result;
	sim_context_drain(c);
	sim_process_lock();
	if (p->context == c) {
		destroy(c);
		p->context = NULL;
		p->references = 0;
	}
	sim_process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
	return sim_primary_end(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	SIM_ENTER(cuDevicePrimaryCtxReset_v2);
	return sim_primary_end(device, true);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2);
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	sim.primary[device].flags = flags;
	if (sim.primary[device].context)
		sim.primary[device].context->flags = flags;
	sim_process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	SIM_ENTER(cuDevicePrimaryCtxGetState);
	SIM_CHECK(sim_check_device(device));
	sim_process_lock();
	if (flags)
		*flags = sim.primary[device].flags;
	if (active)
		*active = sim.primary[device].context != NULL;
	sim_process_unlock();
	return CUDA_SUCCESS;
}
