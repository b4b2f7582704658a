/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of everything that starts work on the multiprocessors. A hook costs one relaxed load and the call
 * that it passes on. Memsets and copies have no hook: a resting keeper notices them within 0.1 s.
 */
#include <stdatomic.h>

#include "driver/access.h"
#include "hooks/mps.h"
#include "limits/latency.h"
#include "limits/launched.h"

#define LAUNCH(name, stream, per_thread, ...)                                                                \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (__builtin_expect(!real, 0))                                                                      \
		return HAMI_REFUSED;                                                                         \
	if (__builtin_expect(atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) != 0, 0)) {       \
		int64_t begun = hami_launch_slow((void *)(stream), per_thread);                              \
		CUresult result = real->name ? real->name(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED;           \
		if (begun)                                                                                   \
			hami_latency_launched(begun, result == CUDA_SUCCESS);                                \
		hami_launch_slow_end((void *)(stream), per_thread);                                          \
		return hami_mps_seen(result);                                                                \
	}                                                                                                    \
	return real->name ? hami_mps_seen(real->name(__VA_ARGS__)) : CUDA_ERROR_NOT_SUPPORTED

#define LAUNCH_KERNEL(name, per_thread)                                                                      \
	CUresult CUDAAPI name(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,               \
			      unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,        \
			      CUstream stream, void **params, void **extra)                                  \
	{                                                                                                    \
		LAUNCH(name, stream, per_thread, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);  \
	}
LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_EX(name, per_thread)                                                                          \
	CUresult CUDAAPI name(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)       \
	{                                                                                                    \
		LAUNCH(name, config ? config->hStream : NULL, per_thread, config, f, params, extra);         \
	}
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

#define LAUNCH_COOPERATIVE(name, per_thread)                                                                 \
	CUresult CUDAAPI name(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,               \
			      unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,        \
			      CUstream stream, void **params)                                                \
	{                                                                                                    \
		LAUNCH(name, stream, per_thread, f, gx, gy, gz, bx, by, bz, shared, stream, params);         \
	}
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#define LAUNCH_GRAPH(name, per_thread)                                                                       \
	CUresult CUDAAPI name(CUgraphExec graph, CUstream stream)                                            \
	{                                                                                                    \
		LAUNCH(name, stream, per_thread, graph, stream);                                             \
	}
LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
						      unsigned int flags)
{
	LAUNCH(cuLaunchCooperativeKernelMultiDevice, list && count ? list[0].hStream : NULL, false, list,
	       count, flags);
}

CUresult CUDAAPI cuLaunch(CUfunction f)
{
	LAUNCH(cuLaunch, NULL, false, f);
}

CUresult CUDAAPI cuLaunchGrid(CUfunction f, int width, int height)
{
	LAUNCH(cuLaunchGrid, NULL, false, f, width, height);
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	LAUNCH(cuLaunchGridAsync, stream, false, f, width, height, stream);
}
