/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. Within a device they take time on the timeline: they run on its compute engine. Between
 * host and device, or two devices, they take none: those are the copy engines'. The bytes move when the call is made, which nobody can tell from later, unless a host function that may
 * write them is still to run in the stream: then they move after it.
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

struct movement {
	void *to;
	const void *from; /* NULL: fill */
	size_t size;
	size_t timed; /* bytes that it takes time for: with its first row, those of all rows */
	uint32_t pattern;
	unsigned width; /* of the pattern: 1, 2 or 4 bytes */
};

bool sim_device_range(CUdeviceptr address, size_t size, bool write)
{
	uintptr_t base;
	size_t length;
	struct region *region;
	if (heap_range(address, &base, &length, &region) != CUDA_SUCCESS)
		return false;
	if (region->kind == REGION_BLOCK &&
	    pool_of(region->heap)) /* where it begins something is allocated */
		length = region->base + region->bytes - base;
	if (size > length - (address - base))
		return false;
	if (region->kind == REGION_RESERVED)
		return vmm_accessible(region, (uintptr_t)address, size);
	region->touched |= write;
	return true;
}

static CUresult check_device(CUdeviceptr address, size_t size, bool write)
{
	sim_process_lock();
	bool valid = sim_device_range(address, size, write);
	sim_process_unlock();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With unified addressing an address says itself whether it is the device's. */
static CUresult check_any(CUdeviceptr address, size_t size, bool write)
{
	sim_process_lock();
	struct region *r = region_find((uintptr_t)address);
	bool valid = !r || r->kind == REGION_HOST || sim_device_range(address, size, write);
	sim_process_unlock();
	return valid && address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void move(const struct movement *m)
{
	if (m->from) {
		memmove(m->to, m->from, m->size);
		return;
	}
	if (m->width == 1) {
		memset(m->to, (int)m->pattern, m->size);
		return;
	}
	for (size_t i = 0; i < m->size; i += m->width)
		memcpy((char *)m->to + i, &m->pattern, m->width);
}

static void move_later(void *argument)
{
	move(argument);
	free(argument);
}

/* True for memory of gpu. With sim.lock held. */
static bool lies_on(const void *address, uint32_t gpu)
{
	const struct region *r = region_find((uintptr_t)address);
	return r && r->kind != REGION_HOST && r->device == gpu;
}

/* The GPU that the memory at an address is of, or SIM_MAX_GPUS for the host's. With sim.lock held. */
static uint32_t gpu_of(const void *address)
{
	const struct region *r = region_find((uintptr_t)address);
	return r && r->kind != REGION_HOST ? r->device : SIM_MAX_GPUS;
}

/* Adds a copy that leaves a GPU, or comes to one, to what NVML shows of its buses. */
static void count_traffic(const struct movement *m)
{
	if (!m->from)
		return;
	sim_process_lock();
	uint32_t to = gpu_of(m->to), from = gpu_of(m->from);
	sim_process_unlock();
	if (to == from)
		return;
	struct sim_gpu *gpus = sim.view.state->gpu;
	sim_lock(&sim.view);
	if (to == SIM_MAX_GPUS)
		gpus[from].sent_bytes += m->size;
	else if (from == SIM_MAX_GPUS)
		gpus[to].received_bytes += m->size;
	else {
		gpus[from].peer_sent_bytes += m->size;
		gpus[to].peer_received_bytes += m->size;
	}
	sim_unlock(&sim.view);
}

static uint64_t time_of(const struct movement *m, uint32_t gpu)
{
	const struct sim_model *model = &sim.view.machine.gpu[gpu];
	uint32_t rate = m->from ? model->copy_gb_per_s : model->fill_gb_per_s;
	sim_process_lock();
	bool within = lies_on(m->to, gpu) && (!m->from || lies_on(m->from, gpu));
	sim_process_unlock();
	return within && rate ? m->timed / rate : 0;
}

static CUresult put(CUstream stream, struct movement m, bool wait)
{
	struct CUstream_st *s;
	SIM_CHECK(sim_stream_live(stream, &s));
	sim_await_launches(s->context);
	if (wait)
		sim_stream_drain(s);
	sim_submit_copy(s, time_of(&m, s->context->device));
	count_traffic(&m);
	if (atomic_load(&s->callbacks) <= sim_callbacks_done()) {
		move(&m);
		return CUDA_SUCCESS;
	}
	struct movement *later = malloc(sizeof *later);
	if (!later)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*later = m;
	CUresult result = sim_callback(s, move_later, later);
	if (result != CUDA_SUCCESS)
		free(later);
	return result;
}

static CUresult copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t size, bool wait)
{
	struct movement m = {.to = (void *)(uintptr_t)to,
			     .from = (const void *)(uintptr_t)from,
			     .size = size,
			     .timed = size};
	return size ? put(stream, m, wait) : CUDA_SUCCESS;
}

static CUresult check_host(const void *address, size_t size)
{
	sim_process_lock();
	bool valid = address && !host_crosses((uintptr_t)address, size);
	sim_process_unlock();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_to_device(CUstream stream, CUdeviceptr to, const void *from, size_t size, bool wait)
{
	if (size) {
		SIM_CHECK(check_host(from, size));
		SIM_CHECK(check_device(to, size, true));
	}
	return copy(stream, to, (CUdeviceptr)(uintptr_t)from, size, wait);
}

static CUresult copy_to_host(CUstream stream, void *to, CUdeviceptr from, size_t size, bool wait)
{
	if (size) {
		SIM_CHECK(check_host(to, size));
		SIM_CHECK(check_device(from, size, false));
	}
	return copy(stream, (CUdeviceptr)(uintptr_t)to, from, size, wait);
}

static CUresult copy_on_device(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t size, bool wait)
{
	if (size) {
		SIM_CHECK(check_device(to, size, true));
		SIM_CHECK(check_device(from, size, false));
	}
	return copy(stream, to, from, size, wait);
}

CUresult sim_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t size, bool wait)
{
	if (size) {
		SIM_CHECK(check_any(to, size, true));
		SIM_CHECK(check_any(from, size, false));
	}
	return copy(stream, to, from, size, wait);
}

CUresult sim_copy_rows(CUstream stream, CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch,
		       size_t size, size_t rows)
{
	for (size_t row = 0; size && row < rows; row++) {
		struct movement m = {.to = (void *)(uintptr_t)(to + row * to_pitch),
				     .from = (const void *)(uintptr_t)(from + row * from_pitch),
				     .size = size,
				     .timed = row ? 0 : size * rows};
		SIM_CHECK(check_any(to + row * to_pitch, size, true));
		SIM_CHECK(check_any(from + row * from_pitch, size, false));
		SIM_CHECK(put(stream, m, false));
	}
	return CUDA_SUCCESS;
}

static CUresult fill(CUstream stream, CUdeviceptr to, uint32_t pattern, unsigned width, size_t count)
{
	size_t size;
	if (__builtin_mul_overflow(count, (size_t)width, &size) || to % width)
		return CUDA_ERROR_INVALID_VALUE;
	if (!size)
		return CUDA_SUCCESS;
	SIM_CHECK(check_device(to, size, true));
	struct movement m = {
		.to = (void *)(uintptr_t)to, .size = size, .timed = size, .pattern = pattern, .width = width};
	return put(stream, m, false);
}

/* The synchronous forms wait for the NULL stream, or with per-thread default streams for the thread's. */
#define SYNCHRONOUS(name, per_thread, declaration, call)                                                     \
	CUresult name declaration                                                                            \
	{                                                                                                    \
		CUstream stream = CU_STREAM_LEGACY;                                                          \
		SIM_ENTER(name);                                                                             \
		return call;                                                                                 \
	}                                                                                                    \
	CUresult per_thread declaration                                                                      \
	{                                                                                                    \
		CUstream stream = CU_STREAM_PER_THREAD;                                                      \
		SIM_ENTER(name);                                                                             \
		return call;                                                                                 \
	}

SYNCHRONOUS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t size),
	    copy_to_device(stream, to, from, size, true))
SYNCHRONOUS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t size),
	    copy_to_host(stream, to, from, size, true))
SYNCHRONOUS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size),
	    copy_on_device(stream, to, from, size, true))
SYNCHRONOUS(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size),
	    sim_copy(stream, to, from, size, true))
SYNCHRONOUS(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr to, unsigned char value, size_t count),
	    fill(stream, to, value, 1, count))
SYNCHRONOUS(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (CUdeviceptr to, unsigned short value, size_t count),
	    fill(stream, to, value, 2, count))
SYNCHRONOUS(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr to, unsigned int value, size_t count),
	    fill(stream, to, value, 4, count))

static CUresult copy_to_array(CUstream stream, CUarray to, size_t offset, const void *from, size_t size)
{
	CUdeviceptr address;
	SIM_CHECK(check_host(from, size));
	SIM_CHECK(sim_array_range(to, offset, size, &address));
	return copy(stream, address, (CUdeviceptr)(uintptr_t)from, size, true);
}

static CUresult copy_from_array(CUstream stream, void *to, CUarray from, size_t offset, size_t size)
{
	CUdeviceptr address;
	SIM_CHECK(check_host(to, size));
	SIM_CHECK(sim_array_range(from, offset, size, &address));
	return copy(stream, (CUdeviceptr)(uintptr_t)to, address, size, true);
}

SYNCHRONOUS(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, (CUarray to, size_t offset, const void *from, size_t size),
	    copy_to_array(stream, to, offset, from, size))
SYNCHRONOUS(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, (void *to, CUarray from, size_t offset, size_t size),
	    copy_from_array(stream, to, from, offset, size))

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	SIM_ENTER(cuMemcpyHtoDAsync_v2);
	return copy_to_device(stream, to, from, size, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	SIM_ENTER(cuMemcpyDtoHAsync_v2);
	return copy_to_host(stream, to, from, size, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	SIM_ENTER(cuMemcpyDtoDAsync_v2);
	return copy_on_device(stream, to, from, size, false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	SIM_ENTER(cuMemcpyAsync);
	return sim_copy(stream, to, from, size, false);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	SIM_ENTER(cuMemsetD8Async);
	return fill(stream, to, value, 1, count);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
	SIM_ENTER(cuMemsetD16Async);
	return fill(stream, to, value, 2, count);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
	SIM_ENTER(cuMemsetD32Async);
	return fill(stream, to, value, 4, count);
}
