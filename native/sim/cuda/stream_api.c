/* SPDX-License-Identifier: Apache-2.0 */
/* Streams as the application sees them. */
#include "sim_cuda.h"

#include <stdlib.h>

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	SIM_ENTER_CONTEXT(cuCtxGetStreamPriorityRange, c);
	(void)c;
	if (least)
		*least = LOWEST_PRIORITY;
	if (greatest)
		*greatest = HIGHEST_PRIORITY;
	return CUDA_SUCCESS;
}

static CUresult create(struct CUctx_st *c, CUstream *out, unsigned flags, int priority)
{
	if (!out || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUstream_st *s = calloc(1, sizeof *s);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->magic = SIM_STREAM_MAGIC;
	s->context = c;
	s->flags = flags;
	s->priority = priority > LOWEST_PRIORITY    ? LOWEST_PRIORITY
		      : priority < HIGHEST_PRIORITY ? HIGHEST_PRIORITY
						    : priority;
	sim_process_lock();
	s->id = ++sim.next_id;
	s->next = c->streams;
	c->streams = s;
	sim_process_unlock();
	*out = s;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuStreamCreate, c);
	return create(c, stream, flags, LOWEST_PRIORITY);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	SIM_ENTER_CONTEXT(cuStreamCreateWithPriority, c);
	return create(c, stream, flags, priority);
}

/* Returns at once; the work in it goes on. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
	SIM_ENTER_CONTEXT(cuStreamDestroy_v2, c);
	(void)c;
	if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
	    stream->magic != SIM_STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_process_lock();
	for (struct CUstream_st **p = &stream->context->streams; *p; p = &(*p)->next)
		if (*p == stream) {
			*p = stream->next;
			break;
		}
	if (atomic_load(&stream->callbacks) > atomic_load(&stream->context->legacy.callbacks))
		atomic_store(&stream->context->legacy.callbacks, atomic_load(&stream->callbacks));
	sim_process_unlock();
	stream->magic = 0;
	free(stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamSynchronize);
	SIM_CHECK(sim_stream_live(stream, &s));
	sim_stream_drain(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamQuery);
	SIM_CHECK(sim_stream_live(stream, &s));
	bool done =
		timeline_reached(&sim.view, s->context->line, s->context->device, sim_stream_position(s)) &&
		sim_callbacks_done() >= atomic_load(&s->callbacks);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamGetPriority);
	SIM_CHECK(sim_stream(stream, &s));
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = s->priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamGetFlags);
	SIM_CHECK(sim_stream(stream, &s));
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = s->flags;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamGetId);
	SIM_CHECK(sim_stream(stream, &s));
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = s->id;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamGetCtx);
	SIM_CHECK(sim_stream(stream, &s));
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = s->context;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamGetDevice);
	SIM_CHECK(sim_stream(stream, &s));
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = s->context->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	struct CUstream_st *s;
	SIM_ENTER(cuLaunchHostFunc);
	SIM_CHECK(sim_stream_live(stream, &s));
	return function ? sim_callback(s, function, data) : CUDA_ERROR_INVALID_VALUE;
}

struct stream_callback {
	CUstreamCallback function;
	CUstream stream;
	void *data;
};

static void run_stream_callback(void *argument)
{
	struct stream_callback *callback = argument;
	callback->function(callback->stream, CUDA_SUCCESS, callback->data);
	free(callback);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned int flags)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamAddCallback);
	SIM_CHECK(sim_stream_live(stream, &s));
	if (!function || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct stream_callback *callback = malloc(sizeof *callback);
	if (!callback)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*callback = (struct stream_callback){function, stream, data};
	CUresult result = sim_callback(s, run_stream_callback, callback);
	if (result != CUDA_SUCCESS)
		free(callback);
	return result;
}

struct written_value {
	_Atomic cuuint32_t *at;
	cuuint32_t value;
};

static void write_value(void *argument)
{
	const struct written_value *written = argument;
	atomic_store(written->at, written->value);
	free(argument);
}

/* Of memory of the host alone. */
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
	struct CUstream_st *s;
	CUdeviceptr known;
	SIM_ENTER(cuStreamWriteValue32_v2);
	SIM_CHECK(sim_stream_live(stream, &s));
	if (flags || address % sizeof value)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(cuMemHostGetDevicePointer_v2(&known, (void *)(uintptr_t)address, 0));
	struct written_value *written = malloc(sizeof *written);
	if (!written)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*written = (struct written_value){(_Atomic cuuint32_t *)(uintptr_t)address, value};
	CUresult result = sim_callback(s, write_value, written);
	if (result != CUDA_SUCCESS)
		free(written);
	return result;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamWaitEvent);
	SIM_CHECK(sim_stream_live(stream, &s));
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!event || event->magic != SIM_EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	const struct CUevent_st e = sim_event_read(event);
	if (!e.recorded)
		return CUDA_SUCCESS;
	if (sim_same_line(e.context, s->context))
		sim_stream_extend(s, e.position); /* it is before whatever follows in s */
	else
		timeline_wait(&sim.view, e.context->line, e.device, e.position); /* two lines have no order */
	if (e.callbacks > atomic_load(&s->callbacks))
		atomic_store(&s->callbacks, e.callbacks);
	return CUDA_SUCCESS;
}
