/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: kernels, allocations and frees of a capturing stream become nodes of a graph. Anything else
 * that is put into it ends the capture with an error, as an operation that cannot be captured does.
 */
#include "graph.h"

CUresult sim_stream_live(CUstream handle, struct CUstream_st **out)
{
	SIM_CHECK(sim_stream(handle, out));
	if (!(*out)->capturing)
		return CUDA_SUCCESS;
	(*out)->capture_broken = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult begin(CUstream stream, CUstreamCaptureMode mode)
{
	struct CUstream_st *s;
	CUgraph graph;
	SIM_CHECK(sim_stream(stream, &s));
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (s == &s->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->capturing)
		return CUDA_ERROR_ILLEGAL_STATE;
	SIM_CHECK(graph_make(&graph));
	s->capture_broken = false;
	s->capture_id++;
	s->capture_mode = mode;
	s->capture_thread = pthread_self();
	s->capturing = graph;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	SIM_ENTER(cuStreamBeginCapture_v2);
	return begin(stream, mode);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	SIM_ENTER(cuStreamBeginCapture);
	return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamEndCapture);
	SIM_CHECK(sim_stream(stream, &s));
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	if (!s->capturing)
		return CUDA_ERROR_ILLEGAL_STATE;
	CUgraph captured = s->capturing;
	s->capturing = NULL;
	if (s->capture_broken) {
		graph_destroy(captured);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	*graph = captured;
	return CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *s)
{
	return !s->capturing       ? CU_STREAM_CAPTURE_STATUS_NONE
	       : s->capture_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
				   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	struct CUstream_st *s;
	SIM_ENTER(cuStreamIsCapturing);
	SIM_CHECK(sim_stream(stream, &s));
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = status_of(s);
	return CUDA_SUCCESS;
}

static CUresult get_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
			 const CUgraphNode **dependencies, size_t *count)
{
	struct CUstream_st *s;
	SIM_CHECK(sim_stream(stream, &s));
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = status_of(s);
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	if (id)
		*id = s->id << 32 | s->capture_id;
	if (graph)
		*graph = s->capturing;
	if (dependencies)
		*dependencies = graph_last_node(s->capturing);
	if (count)
		*count = graph_last_node(s->capturing) != NULL;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	SIM_ENTER(cuStreamGetCaptureInfo);
	return get_info(stream, status, id, NULL, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	SIM_ENTER(cuStreamGetCaptureInfo_v2);
	return get_info(stream, status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies,
				   const CUgraphEdgeData **edges, size_t *count)
{
	SIM_ENTER(cuStreamGetCaptureInfo_v3);
	if (edges)
		*edges = NULL;
	return get_info(stream, status, id, graph, dependencies, count);
}

static _Thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* As seen on an H200 (driver 580). */
static bool forbids(const struct CUstream_st *s)
{
	if (!s->capturing || s->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	const bool own = pthread_equal(s->capture_thread, pthread_self());
	return own || (s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
		       mode_of_thread == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;
	if (mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	sim_process_lock();
	for (struct CUctx_st *c = sim.contexts; c; c = c->next)
		for (struct CUstream_st *s = c->streams; s; s = s->next)
			if (forbids(s)) {
				s->capture_broken = true;
				result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
			}
	sim_process_unlock();
	return result;
}

/* Of the calls here only cuEventSynchronize asks for it. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	SIM_ENTER(cuThreadExchangeStreamCaptureMode);
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode before = mode_of_thread;
	mode_of_thread = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult sim_capture_kernel(struct CUstream_st *s, uint64_t ns)
{
	return graph_add_kernel_ns(s->capturing, ns);
}

CUresult sim_capture_alloc(struct CUstream_st *s, CUdeviceptr *out, size_t size)
{
	return graph_add_alloc(s->capturing, s->context->device, size, out);
}

CUresult sim_capture_free(struct CUstream_st *s, CUdeviceptr address)
{
	return graph_add_free(s->capturing, address);
}
