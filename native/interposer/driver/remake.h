/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the driver that take one object of device memory off the GPU, and make it again with the same handle at the
 * same address (driver/movable.h). They go past the hooks, which keep what they know of it. One thread makes them.
 */
#ifndef HAMI_REMAKE_H
#define HAMI_REMAKE_H
#include <stdbool.h>
#include <stdint.h>

#include "driver/movable.h"

/* Return whether the driver did so. */
bool hami_remake_unmap(const struct hami_movable *m);
bool hami_remake_free(const struct hami_movable *m);
bool hami_remake_map(const struct hami_movable *m);

/* Makes and maps it. Returns a status of the resource manager. */
uint32_t hami_remake_make(const struct hami_movable *m);

#endif
