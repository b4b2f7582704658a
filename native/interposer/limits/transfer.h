/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies device memory to the host and back, by several threads at once, each with a stream and a pinned buffer of its
 * own: the GPU's link is faster than one thread copies, and pinning as much memory as is moved takes longer than moving
 * it. No lock; one transfer at a time. Not async-signal-safe.
 */
#ifndef HAMI_TRANSFER_H
#define HAMI_TRANSFER_H
#include <stdbool.h>
#include <stddef.h>

#include "driver/resolve.h"

/* One piece of memory. `failed` is set when libcuda refuses its address, or a copy failed. */
struct hami_piece {
	CUdeviceptr device;
	char *host;
	size_t bytes;
	_Atomic bool failed;
};

/* Copies all pieces, in that context. Returns false when no thread could work; pieces tell of each other failure. */
bool hami_transfer(const struct real_cuda *real, CUcontext context, struct hami_piece *pieces, size_t count,
		   bool to_host);

#endif
