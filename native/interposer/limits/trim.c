/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/trim.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { POOLS = 64 };

static CUmemoryPool _Atomic pools[POOLS];
static _Atomic bool more; /* there were more at a time */

void hami_trim_add(CUmemoryPool pool)
{
	for (int i = 0; i < POOLS; i++) {
		CUmemoryPool none = NULL;
		if (atomic_compare_exchange_strong(&pools[i], &none, pool))
			return;
	}
	more = true;
}

bool hami_trim_knows_all(void)
{
	return !more;
}

void hami_trim_remove(CUmemoryPool pool)
{
	for (int i = 0; i < POOLS && pool; i++) {
		CUmemoryPool known = pool;
		if (atomic_load_explicit(&pools[i], memory_order_relaxed) == pool)
			atomic_compare_exchange_strong(&pools[i], &known, NULL);
	}
}

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
		if (real->cuDeviceGraphMemTrim)
			real->cuDeviceGraphMemTrim(device);
	}
	for (int i = 0; i < POOLS; i++)
		if ((pool = pools[i]))
			real->cuMemPoolTrimTo(pool, 0);
	real->cuCtxPopCurrent_v2(&before);
}

void hami_trim_forget(void)
{
	for (int i = 0; i < POOLS; i++)
		if (pools[i])
			pools[i] = NULL;
}

void hami_trim_forked(void)
{
	hami_trim_forget();
	if (more)
		more = false;
}
