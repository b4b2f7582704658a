/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of waiting for work. They change nothing: what an application has waited for is where a request of a
 * latency-critical job ends (limits/latency.h). Elsewhere a hook costs one relaxed load and the call.
 * What waits for all of a context would wait for a placeholder, too, and ends it (limits/placeholder.h).
 */
#include <stdatomic.h>

#include "driver/access.h"
#include "hooks/mps.h"
#include "limits/latency.h"
#include "limits/placeholder.h"

#define WAIT_AFTER(first, name, ...)                                                                         \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (__builtin_expect(!real, 0))                                                                      \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	first;                                                                                               \
	CUresult result = real->name(__VA_ARGS__);                                                           \
	if (__builtin_expect(atomic_load_explicit(&hami_latency_begun, memory_order_relaxed) != 0, 0))       \
		hami_latency_waited();                                                                       \
	return hami_mps_seen(result)
#define WAIT(...) WAIT_AFTER((void)0, __VA_ARGS__)
#define WAIT_FOR_ALL(...) WAIT_AFTER(hami_placeholder_end(), __VA_ARGS__)

CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
	WAIT(cuStreamSynchronize, stream);
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream stream)
{
	WAIT(cuStreamSynchronize_ptsz, stream);
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
	WAIT(cuEventSynchronize, event);
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
	WAIT_FOR_ALL(cuCtxSynchronize);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context)
{
	WAIT_FOR_ALL(cuCtxSynchronize_v2, context);
}
