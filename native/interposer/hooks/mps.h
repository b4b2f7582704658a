/* SPDX-License-Identifier: Apache-2.0 */
/* Says once, on standard error, that the process is no client of its MPS server any more (mode=mps). */
#ifndef HAMI_HOOKS_MPS_H
#define HAMI_HOOKS_MPS_H
#include <cuda.h>

/* Writes the line for one of CUDA_ERROR_MPS_*, once in the process. Safe in any thread. */
void hami_mps_say(CUresult result);

/* Returns what the driver said. */
static inline CUresult hami_mps_seen(CUresult result)
{
	if (__builtin_expect(result >= CUDA_ERROR_MPS_CONNECTION_FAILED &&
				     result <= CUDA_ERROR_MPS_CLIENT_TERMINATED,
			     0))
		hami_mps_say(result);
	return result;
}
#endif
