/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exports for per-thread default streams: as the others, but the NULL stream is the thread's own. (All
 * threads of a context share one here: a process's work runs in one order anyhow.)
 */
#include "sim_cuda.h"

static CUstream own(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

#define PER_THREAD(name, declaration, arguments)                                                             \
	CUresult name##_ptsz declaration                                                                     \
	{                                                                                                    \
		return name arguments;                                                                       \
	}

PER_THREAD(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
	   (to, from, size, own(stream)))
PER_THREAD(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream),
	   (to, from, size, own(stream)))
PER_THREAD(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
	   (to, from, size, own(stream)))
PER_THREAD(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
	   (to, from, size, own(stream)))
PER_THREAD(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
	   (to, value, count, own(stream)))
PER_THREAD(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
	   (to, value, count, own(stream)))
PER_THREAD(cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
	   (to, value, count, own(stream)))
PER_THREAD(cuMemAllocAsync, (CUdeviceptr * out, size_t size, CUstream stream), (out, size, own(stream)))
PER_THREAD(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream),
	   (out, size, pool, own(stream)))
PER_THREAD(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), (address, own(stream)))
PER_THREAD(cuStreamSynchronize, (CUstream stream), (own(stream)))
PER_THREAD(cuStreamQuery, (CUstream stream), (own(stream)))
PER_THREAD(cuStreamGetPriority, (CUstream stream, int *priority), (own(stream), priority))
PER_THREAD(cuStreamGetFlags, (CUstream stream, unsigned int *flags), (own(stream), flags))
PER_THREAD(cuStreamGetId, (CUstream stream, unsigned long long *id), (own(stream), id))
PER_THREAD(cuStreamGetCtx, (CUstream stream, CUcontext *context), (own(stream), context))
PER_THREAD(cuStreamGetDevice, (CUstream stream, CUdevice *device), (own(stream), device))
PER_THREAD(cuStreamWriteValue32_v2,
	   (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
	   (own(stream), address, value, flags))
PER_THREAD(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), (own(stream), status))
PER_THREAD(cuStreamBeginCapture, (CUstream stream), (own(stream)))
PER_THREAD(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (own(stream), mode))
PER_THREAD(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (own(stream), graph))
PER_THREAD(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
	   (own(stream), status, id))
PER_THREAD(cuStreamGetCaptureInfo_v2,
	   (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	    const CUgraphNode **dependencies, size_t *count),
	   (own(stream), status, id, graph, dependencies, count))
PER_THREAD(cuStreamGetCaptureInfo_v3,
	   (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	    const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
	   (own(stream), status, id, graph, dependencies, edges, count))
PER_THREAD(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p, CUstream stream), (p, own(stream)))
PER_THREAD(cuMemcpyPeerAsync,
	   (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
	    CUstream stream),
	   (to, to_context, from, from_context, size, own(stream)))
PER_THREAD(cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
	   (address, size, device, own(stream)))
PER_THREAD(cuMemPrefetchAsync_v2,
	   (CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags, CUstream stream),
	   (address, size, location, flags, own(stream)))
PER_THREAD(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
	   (own(stream), event, flags))
PER_THREAD(cuStreamAddCallback, (CUstream stream, CUstreamCallback function, void *data, unsigned int flags),
	   (own(stream), function, data, flags))
PER_THREAD(cuEventRecord, (CUevent event, CUstream stream), (event, own(stream)))
PER_THREAD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
	   (event, own(stream), flags))
PER_THREAD(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), (own(stream), function, data))
PER_THREAD(cuLaunchKernel,
	   (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
	    unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra),
	   (f, gx, gy, gz, bx, by, bz, shared, own(stream), parameters, extra))
PER_THREAD(cuLaunchCooperativeKernel,
	   (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
	    unsigned int bz, unsigned int shared, CUstream stream, void **parameters),
	   (f, gx, gy, gz, bx, by, bz, shared, own(stream), parameters))
PER_THREAD(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, own(stream)))
PER_THREAD(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, own(stream)))

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	CUlaunchConfig mine = *config;
	mine.hStream = own(config->hStream);
	return cuLaunchKernelEx(&mine, f, parameters, extra);
}
