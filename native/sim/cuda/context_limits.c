/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be set on a context. It is kept and told, and changes nothing, but for the memory that the stacks of threads
 * take.
 */
#include "sim_cuda.h"

static const size_t initial_limits[SIM_LIMITS] = {
	[CU_LIMIT_STACK_SIZE] = SIM_STACK_BYTES,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	SIM_ENTER_CONTEXT(cuCtxGetLimit, c);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)limit >= SIM_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = c->limit_set[limit] ? c->limit[limit] : initial_limits[limit];
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	SIM_ENTER_CONTEXT(cuCtxSetLimit, c);
	if ((unsigned)limit >= SIM_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (limit == CU_LIMIT_STACK_SIZE) {
		sim_process_lock();
		CUresult result = sim_context_stacks(c, value);
		sim_process_unlock();
		SIM_CHECK(result);
	}
	c->limit[limit] = value;
	c->limit_set[limit] = true;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	SIM_ENTER_CONTEXT(cuCtxGetCacheConfig, c);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = c->cache_config;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	SIM_ENTER_CONTEXT(cuCtxSetCacheConfig, c);
	if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	c->cache_config = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuCtxSetFlags, c);
	c->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device)
{
	SIM_ENTER(cuDeviceGetExecAffinitySupport);
	if (!supported || (unsigned)type >= CU_EXEC_AFFINITY_TYPE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	*supported = 0; /* only MPS clients have it */
	return CUDA_SUCCESS;
}

static uint32_t peer_bit(const struct CUctx_st *peer)
{
	return 1u << peer->device;
}

static CUresult check_peer(const struct CUctx_st *c, const struct CUctx_st *peer)
{
	sim_process_lock();
	bool valid = peer && peer != c && sim_context_valid(peer);
	sim_process_unlock();
	if (!valid)
		return CUDA_ERROR_INVALID_CONTEXT;
	return peer->device == c->device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	SIM_ENTER_CONTEXT(cuCtxEnablePeerAccess, c);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(check_peer(c, peer));
	uint32_t before = atomic_fetch_or(&c->peers, peer_bit(peer));
	return before & peer_bit(peer) ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	SIM_ENTER_CONTEXT(cuCtxDisablePeerAccess, c);
	SIM_CHECK(check_peer(c, peer));
	uint32_t before = atomic_fetch_and(&c->peers, ~peer_bit(peer));
	return before & peer_bit(peer) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
