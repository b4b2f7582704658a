/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/trim.h"

#include <stddef.h>

void hami_trim_pools(const struct real_cuda *real, CUcontext context)
{
	CUcontext before;
	CUdevice device;
	CUmemoryPool pool;
	if (!real->cuMemPoolTrimTo || !real->cuDeviceGetMemPool || !real->cuDeviceGetDefaultMemPool ||
	    real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return;
	if (real->cuCtxGetDevice(&device) == CUDA_SUCCESS) {
		if (real->cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS)
			real->cuMemPoolTrimTo(pool, 0);
		if (real->cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS)
			real->cuMemPoolTrimTo(pool, 0);
	}
	real->cuCtxPopCurrent_v2(&before);
}
