/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work. All of a context's work runs in the order in which it was submitted, so that a stream is
 * no more than the position of the last work put into it. Host functions run beside that line: what follows
 * one in its stream is not held back by it, except copies and synchronisation.
 */
#include "sim_cuda.h"

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

void sim_stream_extend(struct CUstream_st *s, uint64_t end)
{
	raise_to(&s->position, end);
	raise_to(&s->context->last_position, end);
	if (!(s->flags & CU_STREAM_NON_BLOCKING))
		raise_to(&s->context->blocking_position, end);
}

static void submit(struct CUstream_st *s, uint64_t length_ns, unsigned launches)
{
	uint32_t gpu = s->context->device;
	const uint32_t line = s->context->line;
	struct queue *queue = &s->context->queue;
	sim_lock(&sim.view);
	uint64_t end = timeline_submit(&sim.view, line, gpu, length_ns);
	sim.view.state->slot[sim.view.slot].gpu[gpu].launches += launches;
	uint64_t *place = &queue->end[queue->launches++ % SIM_QUEUE_DEPTH];
	uint64_t before = *place;
	*place = end;
	bool full = sim.view.state->slot[line].gpu[gpu].done_ns < before;
	if (queue->pending)
		sim_settle_events(s->context);
	sim_unlock(&sim.view);
	sim_stream_extend(s, end);
	if (!full)
		return;
	pthread_mutex_lock(&s->context->issuing);
	timeline_wait(&sim.view, line, gpu, before);
	pthread_mutex_unlock(&s->context->issuing);
}

void sim_await_launches(struct CUctx_st *c)
{
	pthread_mutex_lock(&c->issuing);
	pthread_mutex_unlock(&c->issuing);
}

void sim_submit(struct CUstream_st *s, uint64_t length_ns)
{
	submit(s, length_ns, 1);
}

void sim_submit_copy(struct CUstream_st *s, uint64_t length_ns)
{
	if (length_ns)
		submit(s, length_ns, 0);
}

uint64_t sim_stream_position(struct CUstream_st *s)
{
	return atomic_load(s == &s->context->legacy ? &s->context->blocking_position : &s->position);
}

static void drain(const struct CUctx_st *c, uint64_t position, uint64_t callbacks)
{
	timeline_wait(&sim.view, c->line, c->device, position);
	if (sim_callbacks_done() < callbacks)
		sim_callbacks_wait(callbacks);
	sim_pools_settle();
}

void sim_stream_drain(struct CUstream_st *s)
{
	drain(s->context, sim_stream_position(s), atomic_load(&s->callbacks));
}

uint64_t sim_context_callbacks(struct CUctx_st *c)
{
	uint64_t callbacks = atomic_load(&c->legacy.callbacks);
	if (atomic_load(&c->per_thread.callbacks) > callbacks)
		callbacks = atomic_load(&c->per_thread.callbacks);
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		if (atomic_load(&s->callbacks) > callbacks)
			callbacks = atomic_load(&s->callbacks);
	return callbacks;
}

void sim_context_drain(struct CUctx_st *c)
{
	sim_process_lock();
	uint64_t callbacks = sim_context_callbacks(c);
	sim_process_unlock();
	drain(c, atomic_load(&c->last_position), callbacks);
}
