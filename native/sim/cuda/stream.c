/* SPDX-License-Identifier: Apache-2.0 */
/* Streams. All of a process's work on one GPU runs in the order in which it was submitted, so that a stream
 * is no more than the position of the last work put into it. */
#include "sim_cuda.h"

#include <stdlib.h>

CUresult sim_stream(CUstream handle, struct CUstream_st **out)
{
	struct CUctx_st *c;
	SIM_CHECK(sim_context(&c));
	if (!handle || handle == CU_STREAM_LEGACY)
		*out = &c->legacy;
	else if (handle == CU_STREAM_PER_THREAD)
		*out = &c->per_thread;
	else if (handle->magic != SIM_STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	else
		*out = handle;
	return CUDA_SUCCESS;
}

static void raise_to(_Atomic uint64_t *at, uint64_t value)
{
	uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
	while (seen < value && !atomic_compare_exchange_weak(at, &seen, value))
		;
}

void sim_submit(struct CUstream_st *s, uint64_t length_ns)
{
	sim_lock(&sim.view);
	uint64_t end = timeline_submit(&sim.view, s->context->device, length_ns);
	sim_unlock(&sim.view);
	raise_to(&s->position, end);
	raise_to(&s->context->last_position, end);
	if (!(s->flags & CU_STREAM_NON_BLOCKING))
		raise_to(&s->context->blocking_position, end);
}

uint64_t sim_stream_position(struct CUstream_st *s)
{
	return atomic_load(s == &s->context->legacy ? &s->context->blocking_position : &s->position);
}

void sim_stream_drain(struct CUstream_st *s)
{
	timeline_wait(&sim.view, s->context->device, sim_stream_position(s));
}

void sim_context_drain(struct CUctx_st *c)
{
	timeline_wait(&sim.view, c->device, atomic_load(&c->last_position));
}
