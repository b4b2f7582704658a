/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of the functions of held.def. In a program that may be moved a call waits while it is (limits/swap.h); in any
 * other a hook costs one relaxed load and the call.
 */
#include <stdatomic.h>

#include "driver/access.h"
#include "hooks/mps.h"
#include "limits/hold.h"
#include "limits/launched.h"
#include "limits/swap.h"

#define CALL(name, arguments)                                                                                \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (__builtin_expect(!real, 0))                                                                      \
		return HAMI_REFUSED;                                                                         \
	if (__builtin_expect(!real->name, 0))                                                                \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	if (!(atomic_load_explicit(&hami_launch_flag, memory_order_relaxed) & HAMI_LAUNCH_HELD))             \
		return hami_mps_seen(real->name arguments);                                                  \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	CUresult result = real->name arguments;                                                              \
	hami_hold_leave(HAMI_HOLD_WORK);                                                                     \
	return hami_mps_seen(result)

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
#include "held.def"
