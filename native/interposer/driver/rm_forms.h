/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a request to the resource manager, in whatever form it is made. Pure, but for the memory that the
 * request points to: no lock, no state, async-signal-safe.
 */
#ifndef HAMI_RM_FORMS_H
#define HAMI_RM_FORMS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * HAMI_RM_MAP: memory, for the CPU or in addresses of its own. HAMI_RM_FABRIC: a handle by which other GPUs reach memory.
 * HAMI_RM_OTHER: a request that needs no accounting.
 */
enum hami_rm_kind {
	HAMI_RM_OTHER,
	HAMI_RM_MAKE,
	HAMI_RM_UNMAKE,
	HAMI_RM_CONTROL,
	HAMI_RM_DUP,
	HAMI_RM_MAP,
	HAMI_RM_FABRIC,
};

struct hami_rm_request {
	enum hami_rm_kind kind;
	uint32_t client, parent;
	uint32_t class_id; /* make: of the object */
	uint32_t engine;   /* make, of a channel group: which it is for; 0 where it is not told */
	uint32_t instance; /* make, of a device: which GPU's; UINT32_MAX where it cannot be read */
	uint32_t *
		object; /* where the handle stands; when made, the driver may have chosen it; map: the memory's */
	uint32_t *status;     /* where the answer stands */
	uint64_t bytes;       /* make: of device memory; UINT64_MAX where its size cannot be read */
	const void *argument; /* control, dup: struct rm_control, rm_dup; fabric: rm_fabric, or NULL */
};

/*
 * Copies what a request points to; false when there is no such memory. A structure of an older driver is shorter, and what
 * lies behind it may not be ours to read.
 */
bool hami_rm_copy(void *out, const void *from, size_t size);

/* Reads the ioctl command `number`, of type 'F'; `argument` is what it points to, not NULL. */
struct hami_rm_request hami_rm_read(unsigned long number, void *argument);

#endif
