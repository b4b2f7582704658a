/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, and what can be asked of a function. */
#include "memory.h"
#include "module.h"
#include "mps.h"

#include <string.h>

enum { CYCLES_A_LOOP = 32 }; /* of hami_hpc_work: eight operations, each after the one before */

static CUresult spin_argument(void **parameters, void **extra, uint64_t *out)
{
	const void *at = parameters ? parameters[0] : NULL;
	for (; !at && extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			at = extra[1];
	if (!at)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(out, at, sizeof *out);
	return CUDA_SUCCESS;
}

CUresult sim_kernel_ns(const struct CUfunc_st *f, uint32_t device, void **parameters, void **extra,
		       uint64_t *out)
{
	if (f->spins)
		return spin_argument(parameters, extra, out);
	*out = sim.view.machine.gpu[device].kernel_ns;
	if (f->works) {
		uint64_t loops;
		SIM_CHECK(spin_argument(parameters, extra, &loops));
		*out += loops * CYCLES_A_LOOP * 1000 / sim.view.machine.gpu[device].clock_mhz;
	}
	return CUDA_SUCCESS;
}

/* The kernel's arguments: to, from, and how many times 16 bytes. Whether anything is allocated there nobody looks. */
static CUresult copy(void **parameters)
{
	CUdeviceptr to, from;
	uint64_t count;
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&to, parameters[0], sizeof to);
	memcpy(&from, parameters[1], sizeof from);
	memcpy(&count, parameters[2], sizeof count);
	sim_process_lock();
	struct region *r = region_find((uintptr_t)to);
	if (r)
		r->touched = true;
	sim_process_unlock();
	memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, count * 16);
	return CUDA_SUCCESS;
}

struct shape {
	unsigned grid[3], block[3], shared;
};

static CUresult check_shape(const struct CUfunc_st *f, const struct shape *shape)
{
	uint64_t threads = 1;
	for (int i = 0; i < 3; i++) {
		if (!shape->grid[i] || !shape->block[i] || shape->block[i] > 1024)
			return CUDA_ERROR_INVALID_VALUE;
		threads *= shape->block[i];
	}
	unsigned most = f->max_dynamic_shared > 49152 ? (unsigned)f->max_dynamic_shared : 49152;
	return threads > 1024 || shape->shared > most ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, const struct shape *shape, CUstream stream, void **parameters,
		       void **extra)
{
	struct CUstream_st *s;
	uint64_t ns;
	if (!sim_function_valid(f))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_CHECK(sim_stream(stream, &s));
	SIM_CHECK(check_shape(f, shape));
	SIM_CHECK(sim_kernel_ns(f, s->context->device, parameters, extra, &ns));
	if (f->copies)
		SIM_CHECK(copy(parameters));
	ns = sim_mps_ns(ns);
	if (s->capturing)
		return sim_capture_kernel(s, ns);
	sim_submit(s, ns);
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
			void **parameters, void **extra)
{
	SIM_ENTER(cuLaunchKernel);
	return launch(f, &(struct shape){{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
				   unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
				   CUstream stream, void **parameters)
{
	SIM_ENTER(cuLaunchCooperativeKernel);
	return launch(f, &(struct shape){{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
	SIM_ENTER(cuLaunchKernelEx);
	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	struct shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
			      {config->blockDimX, config->blockDimY, config->blockDimZ},
			      config->sharedMemBytes};
	return launch(f, &shape, config->hStream, parameters, extra);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
	SIM_ENTER(cuFuncGetAttribute);
	if (!value || (int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_function_valid(f))
		return CUDA_ERROR_INVALID_HANDLE;
	const struct sim_model *m = &sim.view.machine.gpu[sim.visible[0]];
	int capability = (int)(m->cc_major * 10 + m->cc_minor);
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 32;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = capability;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = f->max_dynamic_shared ? f->max_dynamic_shared : 49152;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		*value = f->shared_carveout;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
	SIM_ENTER(cuFuncSetAttribute);
	if (!sim_function_valid(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0)
		f->max_dynamic_shared = value;
	else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 &&
		 value <= 100)
		f->shared_carveout = value;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config)
{
	SIM_ENTER(cuFuncSetCacheConfig);
	if (!sim_function_valid(f))
		return CUDA_ERROR_INVALID_HANDLE;
	return (unsigned)config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As many as 2048 threads and 32 blocks per multiprocessor allow; shared memory as on the smallest model. */
static CUresult active_blocks(int *blocks, CUfunction f, int block_size, size_t dynamic_shared)
{
	if (!blocks || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_function_valid(f))
		return CUDA_ERROR_INVALID_HANDLE;
	int warps = (block_size + 31) / 32;
	int most = block_size > 1024 ? 0 : 64 / warps < 32 ? 64 / warps : 32;
	if (dynamic_shared && (size_t)most > (size_t)164 * 1024 / (dynamic_shared + 1024))
		most = (int)((size_t)164 * 1024 / (dynamic_shared + 1024));
	*blocks = most;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size,
						     size_t dynamic_shared)
{
	SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
	return active_blocks(blocks, f, block_size, dynamic_shared);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int block_size,
							      size_t dynamic_shared, unsigned int flags)
{
	SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
	if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	return active_blocks(blocks, f, block_size, dynamic_shared);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block_size, CUfunction f,
					  CUoccupancyB2DSize shared_of_block, size_t dynamic_shared,
					  int limit)
{
	SIM_ENTER_CONTEXT(cuOccupancyMaxPotentialBlockSize, c);
	int blocks;
	if (!min_grid || !block_size)
		return CUDA_ERROR_INVALID_VALUE;
	*block_size = limit > 0 && limit < 1024 ? limit : 1024;
	size_t shared = shared_of_block ? shared_of_block(*block_size) : dynamic_shared;
	SIM_CHECK(active_blocks(&blocks, f, *block_size, shared));
	*min_grid = blocks * (int)sim.view.machine.gpu[c->device].sm_count;
	return CUDA_SUCCESS;
}
