/* SPDX-License-Identifier: Apache-2.0 */
/* Says once, on standard error, why a client of MPS lost its work (mode=mps): its server, or a fault of a client. */
#ifndef HAMI_HOOKS_MPS_H
#define HAMI_HOOKS_MPS_H
#include <cuda.h>

/*
 * Writes the line for one of CUDA_ERROR_MPS_* and, in a client of MPS, for a fault of a kernel, once in the process.
 * Nothing for other errors. Safe in any thread.
 */
void hami_mps_say(CUresult result);

/* Returns what the driver said. */
static inline CUresult hami_mps_seen(CUresult result)
{
	if (__builtin_expect(
		    result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_MPS_CLIENT_TERMINATED, 0))
		hami_mps_say(result);
	return result;
}
#endif
