/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/transfer.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hami_contract.h"
#include "limits/hold.h"
#include "limits/kernel_copy.h"
#include "limits/trim.h"

#define CHUNK (8ull << 20) /* small, so that a buffer stays in the CPU's caches between its two copies */
enum { WORKERS_MOST = 16, WORKERS_PINNED = 2 };

struct transfer {
	const struct real_cuda *real;
	CUcontext context;
	struct hami_piece *pieces;
	size_t count;
	bool to_host;
	bool by_kernel; /* what libcuda does not copy, and nothing else */
	const struct hami_arena *arena;
	bool pinned;           /* all of the host's memory is */
	_Atomic size_t next;   /* chunk, of all pieces' */
	_Atomic size_t worked; /* threads that could */
	const _Atomic bool *ended;
};

static size_t chunks_of(const struct hami_piece *piece)
{
	return (piece->bytes + CHUNK - 1) / CHUNK;
}

static CUresult start(const struct transfer *t, CUdeviceptr device, char *host, size_t bytes, CUstream stream)
{
	if (t->by_kernel)
		return hami_kernel_copy(t->real, device, host, bytes, t->to_host, stream);
	return t->to_host ? t->real->cuMemcpyDtoHAsync_v2(host, device, bytes, stream)
			  : t->real->cuMemcpyHtoDAsync_v2(device, host, bytes, stream);
}

/* Returns whether host memory is page-locked. */
static bool is_pinned(const struct hami_arena *arena, const char *host, size_t bytes)
{
	return host >= arena->memory && host + bytes <= arena->memory + arena->pinned;
}

static CUresult wait_for(const struct transfer *t, CUstream stream, CUresult started)
{
	CUresult result = t->real->cuStreamSynchronize(stream);
	return started == CUDA_SUCCESS ? result : started;
}

/* Copies page-locked memory, of which no copy crosses from a piece to the next. */
static CUresult copy_pinned(const struct transfer *t, CUdeviceptr device, char *host, size_t bytes,
			    CUstream stream)
{
	CUresult result = CUDA_SUCCESS;
	while (bytes && result == CUDA_SUCCESS) {
		const size_t left = HAMI_ARENA_PIECE - (size_t)(host - t->arena->memory) % HAMI_ARENA_PIECE;
		const size_t part = bytes < left ? bytes : left;
		result = start(t, device, host, part, stream);
		device += part;
		host += part;
		bytes -= part;
	}
	return wait_for(t, stream, result);
}

static CUresult copy_by_buffer(const struct transfer *t, CUdeviceptr device, char *host, char *buffer,
			       size_t bytes, CUstream stream)
{
	if (!t->to_host && !hami_arena_read(t->arena, buffer, host, bytes))
		return CUDA_ERROR_OPERATING_SYSTEM;
	const CUresult result = wait_for(t, stream, start(t, device, buffer, bytes, stream));
	if (t->to_host && result == CUDA_SUCCESS && !hami_arena_write(t->arena, host, buffer, bytes))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return result;
}

static CUresult copy(const struct transfer *t, CUdeviceptr device, char *host, char *buffer, size_t bytes,
		     CUstream stream)
{
	if (!is_pinned(t->arena, host, bytes))
		return copy_by_buffer(t, device, host, buffer, bytes, stream);
	const CUresult result = copy_pinned(t, device, host, bytes, stream);
	if (result == CUDA_SUCCESS || !t->by_kernel)
		return result;
	return copy_by_buffer(t, device, host, buffer, bytes, stream); /* no kernel may reach it there */
}

/* Copies chunks until there is none left. */
static void copy_chunks(struct transfer *t, char *buffer, CUstream stream)
{
	size_t piece = 0, first = 0; /* the first chunk of that piece */
	for (;;) {
		size_t chunk = t->next++;
		while (piece < t->count && chunk >= first + chunks_of(&t->pieces[piece]))
			first += chunks_of(&t->pieces[piece++]);
		if (piece == t->count || (t->to_host && *t->ended))
			return;
		struct hami_piece *p = &t->pieces[piece];
		size_t at = (chunk - first) * CHUNK, end = at + CHUNK < p->bytes ? at + CHUNK : p->bytes;
		if (t->by_kernel && at < p->by_libcuda)
			at = p->by_libcuda;
		else if (!t->by_kernel && end > p->by_libcuda)
			end = p->by_libcuda;
		if (p->result != CUDA_SUCCESS || at >= end)
			continue;
		const CUresult result = copy(t, p->device + at, p->host + at, buffer, end - at, stream);
		if (result != CUDA_SUCCESS)
			p->result = result;
	}
}

static void work(struct transfer *t, CUstream stream)
{
	const struct real_cuda *real = t->real;
	void *buffer = NULL;
	if ((!t->pinned || t->by_kernel) && real->cuMemHostAlloc(&buffer, CHUNK, 0) != CUDA_SUCCESS)
		return;
	t->worked++;
	if (t->by_kernel) {
		const CUstreamCaptureMode mode = hami_kernel_copy_enter(real);
		copy_chunks(t, buffer, stream);
		hami_kernel_copy_leave(real, mode);
	} else {
		copy_chunks(t, buffer, stream);
	}
	if (buffer)
		real->cuMemFreeHost(buffer);
}

static void *worker(void *argument)
{
	struct transfer *t = argument;
	const struct real_cuda *real = t->real;
	CUcontext before;
	CUstream stream;
	hami_hold_pass();
	if (real->cuCtxPushCurrent_v2(t->context) != CUDA_SUCCESS)
		return NULL;
	if (real->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
		work(t, stream);
		real->cuStreamDestroy_v2(stream);
	}
	real->cuCtxPopCurrent_v2(&before);
	return NULL;
}

/* Copies so many bytes with as many threads as there is use for. Returns whether one could. */
static bool copy_all(struct transfer *t, size_t bytes)
{
	pthread_t threads[WORKERS_MOST];
	cpu_set_t cpus;
	int wanted = sched_getaffinity(0, sizeof cpus, &cpus)
			     ? WORKERS_MOST
			     : CPU_COUNT(&cpus); /* it fails with more than 1024 */
	int started = 0;
	const size_t useful = bytes / CHUNK + 1, usual = t->pinned ? WORKERS_PINNED : WORKERS_MOST;
	const int most = (int)(useful < usual ? useful : usual);
	t->next = 0;
	t->worked = 0;
	while (started < most && started < wanted && !pthread_create(&threads[started], NULL, worker, t))
		started++;
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	if (!started)
		worker(t);
	return t->worked > 0;
}

static CUresult prepare(const struct transfer *t)
{
	CUcontext before;
	CUresult result = t->real->cuCtxPushCurrent_v2(t->context);
	if (result != CUDA_SUCCESS)
		return result;
	result = hami_kernel_copy_prepare(t->real);
	t->real->cuCtxPopCurrent_v2(&before);
	return result;
}

/* Returns whether a kernel may copy what libcuda refuses of such an object. */
static bool may_by_kernel(enum hami_holds holds, bool to_host)
{
	return holds == HAMI_HOLDS_ARRAYS || holds == HAMI_HOLDS_SMALL ||
	       (holds == HAMI_HOLDS_POOL && (!to_host || hami_trim_knows_all()));
}

/* Takes for the kernel what libcuda refused. Returns the bytes that it copies; sets whether there are pools, and failures. */
static size_t take_refused(const struct transfer *t, bool *pools, bool *failures)
{
	size_t bytes = 0;
	for (size_t i = 0; i < t->count; i++) {
		struct hami_piece *p = &t->pieces[i];
		if (p->result == CUDA_ERROR_INVALID_VALUE && may_by_kernel(p->holds, t->to_host)) {
			p->by_libcuda = 0;
			p->result = CUDA_SUCCESS;
		}
		bytes += p->result == CUDA_SUCCESS ? p->bytes - p->by_libcuda : 0;
		*pools = *pools || p->holds == HAMI_HOLDS_POOL;
		*failures = *failures || p->result != CUDA_SUCCESS;
	}
	return bytes;
}

/*
 * Copies by a kernel, once nothing else is under way, what libcuda does not: the rest of the last page of an allocation, pages of
 * small ones, and what it refused of pools and arrays. What the kernel does not copy either stays on the GPU, as if there were none. Returns
 * false when no thread could bring back what is away, or the GPU was full.
 */
static bool copy_rest(struct transfer *t)
{
	bool pools = false, failures = false;
	size_t bytes = take_refused(t, &pools, &failures);
	if (failures && !t->to_host) /* it cannot come back */
		return true;
	if (!bytes && !(pools && t->to_host)) /* what is freed meanwhile is refused on the way back only */
		return true;
	const CUresult loaded = prepare(t);
	if (loaded == CUDA_ERROR_OUT_OF_MEMORY && !t->to_host)
		return false;
	if (!bytes)
		return true;
	const bool prepared = loaded == CUDA_SUCCESS;
	t->by_kernel = true;
	bool worked = prepared && copy_all(t, bytes);
	for (size_t i = 0; i < t->count; i++) {
		struct hami_piece *p = &t->pieces[i];
		if (p->by_libcuda == p->bytes || p->result == CUDA_ERROR_OPERATING_SYSTEM)
			continue;
		if (!t->to_host && p->result == CUDA_ERROR_OUT_OF_MEMORY) {
			worked = false; /* others' memory: all of it is copied again */
			p->result = CUDA_SUCCESS;
		}
		if (!prepared || (t->to_host && (!worked || p->result != CUDA_SUCCESS))) {
			p->result = CUDA_ERROR_INVALID_VALUE;
			bytes -= p->bytes - p->by_libcuda;
		}
	}
	if (worked && bytes >> 20)
		hami_log(1, "%zu MiB copied to the %s by a kernel\n", bytes >> 20,
			 t->to_host ? "host" : "GPU");
	return worked || !prepared || t->to_host;
}

static bool checks;

void hami_transfer_begin(void)
{
	const char *text = secure_getenv(HAMI_ENV_CHECKSUMS);
	checks = text && atoi(text) == 1;
	hami_arena_begin();
}

/* Sets *sum, of whole words: pieces are pages. */
static bool sum_of(const struct hami_arena *arena, const struct hami_piece *piece, uint64_t *sum)
{
	uint64_t words[4096];
	*sum = 14695981039346656037ull; /* FNV-1a, by words */
	for (size_t at = 0, part; at < piece->bytes; at += part) {
		part = piece->bytes - at < sizeof words ? piece->bytes - at : sizeof words;
		if (!hami_arena_read(arena, words, piece->host + at, part))
			return false;
		for (size_t i = 0; i < part / sizeof *words; i++)
			*sum = (*sum ^ words[i]) * 1099511628211ull;
	}
	return true;
}

/* What changed on the host has failed to come back. */
static void compare(const struct hami_arena *arena, struct hami_piece *pieces, size_t count)
{
	uint64_t sum;
	for (size_t i = 0; i < count; i++) {
		if (pieces[i].result != CUDA_SUCCESS)
			continue;
		if (!sum_of(arena, &pieces[i], &sum)) {
			pieces[i].result = CUDA_ERROR_OPERATING_SYSTEM;
		} else if (sum != pieces[i].sum) {
			hami_log(0,
				 "the content of %zu MiB of device memory changed while it was on the host\n",
				 pieces[i].bytes >> 20);
			pieces[i].result = CUDA_ERROR_UNKNOWN;
		}
	}
}

bool hami_transfer(const struct real_cuda *real, CUcontext context, struct hami_piece *pieces, size_t count,
		   const struct hami_arena *arena, bool to_host, const _Atomic bool *ended)
{
	struct transfer t = {.real = real,
			     .context = context,
			     .pieces = pieces,
			     .count = count,
			     .arena = arena,
			     .pinned = true,
			     .to_host = to_host,
			     .ended = ended};
	size_t bytes = 0;
	for (size_t i = 0; i < count; i++) {
		t.pinned = t.pinned && is_pinned(arena, pieces[i].host, pieces[i].bytes);
		bytes += pieces[i].bytes;
	}
	if (checks && !to_host)
		compare(arena, pieces, count);
	const bool worked = copy_all(&t, bytes) && copy_rest(&t);
	for (size_t i = 0; i < count && checks && to_host; i++)
		if (pieces[i].result == CUDA_SUCCESS && !sum_of(arena, &pieces[i], &pieces[i].sum))
			pieces[i].result = CUDA_ERROR_OPERATING_SYSTEM;
	return worked;
}

size_t hami_transfer_drop_refused(const struct real_cuda *real, CUcontext context,
				  struct hami_movable *objects, size_t *count)
{
	CUcontext before;
	size_t kept = 0, dropped = 0;
	char byte;
	if (real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return 0;
	for (size_t i = 0; i < *count; i++)
		if (real->cuMemcpyDtoH_v2(&byte, objects[i].base, sizeof byte) == CUDA_ERROR_INVALID_VALUE &&
		    !(may_by_kernel(objects[i].holds, true) &&
		      hami_kernel_copy_prepare(real) == CUDA_SUCCESS))
			dropped += objects[i].length;
		else
			objects[kept++] = objects[i];
	*count = kept;
	real->cuCtxPopCurrent_v2(&before);
	return dropped;
}
