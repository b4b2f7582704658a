/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the driver that take one object of device memory off the GPU, and make it again with the same handle at the
 * same address (driver/movable.h). They go past the hooks, which keep what they know of it. One thread makes them.
 */
#ifndef HAMI_REMAKE_H
#define HAMI_REMAKE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/movable.h"

/*
 * Unmaps and frees an object, with its handle for other GPUs. Returns false when the driver refuses it: the object is as it
 * was, or, with *lost set, it is mapped no more.
 */
bool hami_remake_free(const struct hami_movable *m, bool *lost);

/* Makes all objects again and maps them, or none: returns RM_OK, RM_NO_MEMORY when the GPU has no room, or a refusal. */
uint32_t hami_remake_all(const struct hami_movable *objects, size_t count);

#endif
