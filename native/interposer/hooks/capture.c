/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks around stream captures. They change nothing: the keeper's looks for outstanding work would spoil a
 * capture, so it must know of each (limits/outstanding.h). It ends with its stream or its context, too. A capture that
 * no hook sees ended is taken as under way for good. In a program whose memory is moved none begins meanwhile: what a
 * move calls would spoil it, and be refused.
 */
#include "hooks/capture.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/access.h"
#include "hooks/mps.h"
#include "limits/hold.h"
#include "limits/known.h"
#include "limits/outstanding.h"
#include "region/process.h"

enum { STREAMS = 64 }; /* with a capture at once; one of more is not known by its stream */

static CUstream _Atomic streams[STREAMS]; /* on which captures began */
static _Atomic uint64_t owners[STREAMS];  /* hami_known_owner() of the stream's context; 0: not known */

/* Returns what hami_known_owner() says of the stream's context. Not during a capture, of which it may be no part. */
static uint64_t owner_of(const struct real_cuda *real, CUstream stream)
{
	CUcontext context = NULL;
	uint64_t owner = 0;
	if (!real->cuStreamGetCtx || real->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
		return 0;
	for (unsigned int i = 0; i < hami_slice_count() && !owner; i++)
		owner = hami_known_owner(i, context);
	return owner;
}

static void remember(CUstream stream, uint64_t owner)
{
	for (int i = 0; i < STREAMS; i++) {
		CUstream none = NULL;
		if (atomic_compare_exchange_strong(&streams[i], &none, stream)) {
			owners[i] = owner;
			return;
		}
	}
}

/* Returns whether it was one of them, and sets whose it was. */
static bool forget(CUstream stream, uint64_t *owner)
{
	bool was = false;
	for (int i = 0; i < STREAMS && stream && !was; i++) {
		CUstream known = stream;
		*owner = owners[i];
		was = atomic_load_explicit(&streams[i], memory_order_relaxed) == stream &&
		      atomic_compare_exchange_strong(&streams[i], &known, NULL);
	}
	return was;
}

/* The body of a hook that begins a capture. */
#define BEGIN(name, stream, ...)                                                                             \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	const uint64_t owner = owner_of(real, stream);                                                       \
	hami_outstanding_capture(true);                                                                      \
	CUresult result = real->name(stream __VA_OPT__(, ) __VA_ARGS__);                                     \
	if (result == CUDA_SUCCESS)                                                                          \
		remember(stream, owner);                                                                     \
	else                                                                                                 \
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
	uint64_t owner = 0;                                                                                  \
	CUresult result = real->name(stream, graph);                                                         \
	if (ended(result)) {                                                                                 \
		forget(stream, &owner);                                                                      \
		hami_outstanding_capture(false);                                                             \
	}                                                                                                    \
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

/* Forgets the stream before it is destroyed: after that, another one may have its place. */
CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuStreamDestroy_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	hami_hold_enter(HAMI_HOLD_WORK);
	uint64_t owner = 0;
	const bool captured = forget(stream, &owner);
	CUresult result = real->cuStreamDestroy_v2(stream);
	if (captured && result == CUDA_SUCCESS)
		hami_outstanding_capture(false);
	else if (captured)
		remember(stream, owner);
	hami_hold_leave(HAMI_HOLD_WORK);
	return hami_mps_seen(result);
}

void hami_capture_end_context(uint64_t owner)
{
	for (int i = 0; i < STREAMS; i++) {
		CUstream stream = streams[i];
		if (stream && owners[i] == owner &&
		    atomic_compare_exchange_strong(&streams[i], &stream, NULL))
			hami_outstanding_capture(false);
	}
}

void hami_capture_forked(void)
{
	for (int i = 0; i < STREAMS; i++)
		if (streams[i])
			streams[i] = NULL;
}
