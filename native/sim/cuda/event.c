/* SPDX-License-Identifier: Apache-2.0 */
/* Events. When one happened is read from the timeline's log soon after, by whichever call looks next. */
#include "sim_cuda.h"

#include <stdlib.h>

static void settle(struct CUevent_st *e)
{
	uint64_t reached = timeline_time_of(&sim.view, e->context->line, e->device, e->position);
	e->happened_ns = reached > e->recorded_ns ? reached : e->recorded_ns;
	e->pending = false;
}

/* How far the line has come in which e was recorded. */
static uint64_t done_ns(const struct CUctx_st *c)
{
	return sim.view.state->slot[c->line].gpu[c->device].done_ns;
}

void sim_settle_events(struct CUctx_st *context)
{
	struct queue *queue = &context->queue;
	uint64_t done = done_ns(context);
	while (queue->pending && queue->pending->position <= done) {
		struct CUevent_st *e = queue->pending;
		queue->pending = e->next;
		settle(e);
	}
}

struct CUevent_st sim_event_read(CUevent event)
{
	sim_lock(&sim.view);
	const struct CUevent_st e = *event;
	sim_unlock(&sim.view);
	return e;
}

/* With the shared mutex held. */
static void forget(struct CUevent_st *e)
{
	if (!e->pending)
		return;
	for (struct CUevent_st **p = &e->context->queue.pending; *p; p = &(*p)->next)
		if (*p == e) {
			*p = e->next;
			break;
		}
	e->pending = false;
}

static void remember(struct CUevent_st *e)
{
	struct CUevent_st **p = &e->context->queue.pending;
	while (*p && (*p)->position <= e->position)
		p = &(*p)->next;
	e->next = *p;
	e->pending = true;
	*p = e;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuEventCreate, c);
	if (!event ||
	    flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_INTERPROCESS)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct CUevent_st *e = calloc(1, sizeof *e);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->magic = SIM_EVENT_MAGIC;
	e->flags = flags;
	e->device = c->device;
	*event = e;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	SIM_ENTER(cuEventDestroy_v2);
	if (!event || event->magic != SIM_EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_lock(&sim.view);
	forget(event);
	sim_unlock(&sim.view);
	event->magic = 0;
	free(event);
	return CUDA_SUCCESS;
}

static CUresult record_at(CUevent e, struct CUctx_st *c, uint64_t position, uint64_t callbacks)
{
	if (!e || e->magic != SIM_EVENT_MAGIC || e->device != c->device)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_lock(&sim.view);
	uint64_t now = timeline_now();
	timeline_advance(&sim.view, e->device, now);
	sim_settle_events(c);
	forget(e);
	e->context = c;
	e->recorded = true;
	e->recorded_ns = now;
	e->position = position;
	e->callbacks = callbacks;
	e->happened_ns = 0;
	if (done_ns(c) >= e->position)
		e->happened_ns = now;
	else if (!(e->flags & CU_EVENT_DISABLE_TIMING))
		remember(e);
	sim_unlock(&sim.view);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent e, CUstream stream)
{
	struct CUstream_st *s;
	SIM_CHECK(sim_stream_live(stream, &s));
	return record_at(e, s->context, sim_stream_position(s), atomic_load(&s->callbacks));
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	SIM_ENTER(cuEventRecord);
	return record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	SIM_ENTER(cuEventRecordWithFlags);
	if (flags > CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	return record(event, stream);
}

/* Breaks the captures of its streams. With sim.lock held. */
static CUresult check_context(struct CUctx_st *c)
{
	CUresult result = CUDA_SUCCESS;
	if (!c || !sim_context_valid(c))
		return CUDA_ERROR_INVALID_CONTEXT;
	for (struct CUstream_st *s = &c->per_thread; s; s = s == &c->per_thread ? c->streams : s->next) {
		if (!s->capturing)
			continue;
		s->capture_broken = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
	SIM_ENTER(cuCtxRecordEvent);
	sim_process_lock();
	CUresult result = check_context(context);
	if (result == CUDA_SUCCESS)
		result = record_at(event, context, atomic_load(&context->last_position),
				   sim_context_callbacks(context));
	sim_process_unlock();
	return result;
}

static void follow(struct CUstream_st *s, const struct CUevent_st *e)
{
	if (sim_same_line(e->context, s->context))
		sim_stream_extend(s, e->position);
	if (e->callbacks > atomic_load(&s->callbacks))
		atomic_store(&s->callbacks, e->callbacks);
}

CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
	SIM_ENTER(cuCtxWaitEvent);
	sim_process_lock();
	CUresult result = check_context(context);
	if (result == CUDA_SUCCESS && (!event || event->magic != SIM_EVENT_MAGIC))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS && event->recorded) {
		follow(&context->legacy, event);
		follow(&context->per_thread, event);
		for (struct CUstream_st *s = context->streams; s; s = s->next)
			follow(s, event);
	}
	sim_process_unlock();
	if (result == CUDA_SUCCESS && event->recorded && !sim_same_line(event->context, context))
		timeline_wait(&sim.view, event->context->line, event->device,
			      event->position); /* two lines have no order */
	return result;
}

static bool happened(CUevent e)
{
	if (!e->recorded)
		return true;
	sim_lock(&sim.view);
	timeline_advance(&sim.view, e->device, timeline_now());
	sim_settle_events(e->context);
	bool reached = done_ns(e->context) >= e->position;
	sim_unlock(&sim.view);
	return reached && sim_callbacks_done() >= e->callbacks;
}

CUresult cuEventQuery(CUevent event)
{
	SIM_ENTER(cuEventQuery);
	if (!event || event->magic != SIM_EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	return happened(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
	SIM_ENTER(cuEventSynchronize);
	if (!event || event->magic != SIM_EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_CHECK(sim_capture_unsafe());
	if (!event->recorded)
		return CUDA_SUCCESS;
	timeline_wait(&sim.view, event->context->line, event->device, event->position);
	sim_callbacks_wait(event->callbacks);
	happened(event);
	sim_pools_settle();
	return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!from || !to || from->magic != SIM_EVENT_MAGIC || to->magic != SIM_EVENT_MAGIC ||
	    (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING || !from->recorded || !to->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!happened(from) || !happened(to))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(int64_t)(to->happened_ns - from->happened_ns) * 1e-6);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	SIM_ENTER(cuEventElapsedTime);
	return elapsed(ms, from, to);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	SIM_ENTER(cuEventElapsedTime_v2);
	return elapsed(ms, from, to);
}
