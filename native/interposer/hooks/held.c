/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of the functions of held.def. In a program that may be moved a call waits while it is (limits/swap.h); in any
 * other a hook costs one relaxed load and the call.
 */
#include <stdatomic.h>

#include "driver/access.h"
#include "driver/movable.h"
#include "hooks/mps.h"
#include "limits/hold.h"
#include "limits/launched.h"
#include "limits/swap.h"

#define CALL_AND(name, arguments, before, after)                                                             \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (__builtin_expect(!real, 0))                                                                      \
		return HAMI_REFUSED;                                                                         \
	if (__builtin_expect(!real->name, 0))                                                                \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	if (!(atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) & HAMI_LAUNCH_HELD))             \
		return hami_mps_seen(real->name arguments);                                                  \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	before;                                                                                              \
	CUresult result = real->name arguments;                                                              \
	after;                                                                                               \
	hami_hold_leave(HAMI_HOLD_WORK);                                                                     \
	return hami_mps_seen(result)

#define CALL(name, arguments) CALL_AND(name, arguments, (void)0, (void)0)

/* After a pool gave memory: looks for its objects if any was made meanwhile. */
static void note_pool(CUresult result, uint64_t last, const CUdeviceptr *address, size_t bytes)
{
	if (result == CUDA_SUCCESS && hami_movable_last() != last)
		hami_movable_pool(*address, bytes);
}

static void note_allocated(CUresult result, const CUdeviceptr *address, size_t bytes)
{
	if (result == CUDA_SUCCESS)
		hami_movable_allocated(*address, bytes);
}

#define HELD(name, parameters, arguments)                                                                    \
	CUresult CUDAAPI name parameters                                                                     \
	{                                                                                                    \
		CALL(name, arguments);                                                                       \
	}
#define HELD_BOTH(name, suffix, parameters, arguments)                                                       \
	HELD(name, parameters, arguments)                                                                    \
	HELD(name##suffix, parameters, arguments)
#define SHARES(name, parameters, arguments)                                                                  \
	CUresult CUDAAPI name parameters                                                                     \
	{                                                                                                    \
		hami_swap_share();                                                                           \
		CALL(name, arguments);                                                                       \
	}
#define POOLED(name, parameters, arguments)                                                                  \
	CUresult CUDAAPI name parameters                                                                     \
	{                                                                                                    \
		CALL_AND(name, arguments, const uint64_t last = hami_movable_last(),                         \
			 note_pool(result, last, a, b));                                                     \
	}
#define POOLED_BOTH(name, suffix, parameters, arguments)                                                     \
	POOLED(name, parameters, arguments)                                                                  \
	POOLED(name##suffix, parameters, arguments)
#define ALLOCATED(name, bytes, parameters, arguments)                                                        \
	CUresult CUDAAPI name parameters                                                                     \
	{                                                                                                    \
		CALL_AND(name, arguments, hami_movable_making(HAMI_HOLDS_ANYTHING),                          \
			 note_allocated(result, a, result == CUDA_SUCCESS ? (bytes) : 0));                   \
	}
#define MADE(name, holds, parameters, arguments)                                                             \
	CUresult CUDAAPI name parameters                                                                     \
	{                                                                                                    \
		CALL_AND(name, arguments, hami_movable_making(holds),                                        \
			 hami_movable_making(HAMI_HOLDS_ANYTHING));                                          \
	}
#include "held.def"
