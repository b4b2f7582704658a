/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies device memory to the host and back, by several threads at once, each with a stream and a page-locked buffer of
 * its own: the GPU's link is faster than one thread copies. Memory that is page-locked itself is copied without a buffer.
 * No lock; one transfer at a time. Not async-signal-safe.
 */
#ifndef HAMI_TRANSFER_H
#define HAMI_TRANSFER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/movable.h"
#include "driver/resolve.h"
#include "limits/arena.h"

/* One piece of memory; `host` is in the arena. */
struct hami_piece {
	CUdeviceptr device;
	char *host;
	size_t bytes;
	enum hami_holds holds; /* what libcuda refuses of pools and arrays a kernel copies */
	size_t by_libcuda; /* so much of the beginning; the rest by a kernel, both ways. A transfer may make it less */
	uint64_t sum; /* of its content on the host, with HAMI_HPC_CHECKSUMS=1 */
	_Atomic CUresult
		result; /* of a copy that failed; CUDA_ERROR_INVALID_VALUE: libcuda refuses the address, and it stays;
			   CUDA_ERROR_OPERATING_SYSTEM: the disk failed */
};

/* Before anything moves: reads the environment, which the program may be changing later. */
void hami_transfer_begin(void);

/*
 * Copies all pieces, in that context. Returns false when no thread could work; pieces tell of each other failure. A copy to
 * the host stops when *ended is set, and then says nothing of what was copied.
 */
bool hami_transfer(const struct real_cuda *real, CUcontext context, struct hami_piece *pieces, size_t count,
		   const struct hami_arena *arena, bool to_host, const _Atomic bool *ended);

/*
 * Leaves out the objects of which nothing is copied, as they are libcuda's own: they stay on the GPU, and need no room on
 * the host. Returns their length. Asks of each one, some us, in that context.
 */
size_t hami_transfer_drop_refused(const struct real_cuda *real, CUcontext context,
				  struct hami_movable *objects, size_t *count);

#endif
