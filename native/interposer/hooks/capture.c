/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks around stream captures. They change nothing: the keeper's looks for outstanding work would spoil a
 * capture, so it must know of each (limits/outstanding.h). A capture that no hook sees ended is taken as under
 * way for good. In a program whose memory is moved none begins meanwhile: what a move calls would spoil it, and be refused.
 */
#include "driver/access.h"
#include "limits/hold.h"
#include "limits/outstanding.h"

/* The body of a hook that begins a capture. */
#define BEGIN(name, ...)                                                                                     \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	hami_outstanding_capture(true);                                                                      \
	CUresult result = real->name(__VA_ARGS__);                                                           \
	if (result != CUDA_SUCCESS)                                                                          \
		hami_outstanding_capture(false);                                                             \
	hami_hold_leave(HAMI_HOLD_WORK);                                                                     \
	return result

/*
 * Returns whether the call ended a capture. After any other error it goes on, or there was none: on another thread,
 * by another stream, by a handle that is no stream's.
 */
static bool ended(CUresult result)
{
	return result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	       result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

/* The body of a hook that ends one. */
#define END(name, stream, graph)                                                                             \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	CUresult result = real->name(stream, graph);                                                         \
	if (ended(result))                                                                                   \
		hami_outstanding_capture(false);                                                             \
	return result

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
	BEGIN(cuStreamBeginCapture, stream);
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
	BEGIN(cuStreamBeginCapture_ptsz, stream);
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCapture_v2, stream, mode);
}

CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCapture_v2_ptsz, stream, mode);
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
					     const CUgraphEdgeData *data, size_t count,
					     CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCaptureToGraph, stream, graph, dependencies, data, count, mode);
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
						  const CUgraphNode *dependencies,
						  const CUgraphEdgeData *data, size_t count,
						  CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, data, count, mode);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	END(cuStreamEndCapture, stream, graph);
}

CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	END(cuStreamEndCapture_ptsz, stream, graph);
}
