/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAMI_ACTIVITY_H
#define HAMI_ACTIVITY_H
#include <stdbool.h>

/*
 * Asks NVML whether this process used the multiprocessors of a slice's GPU in about the last second; true when it cannot
 * say. Takes milliseconds. Thread-safe, not async-signal-safe; no lock, so no fork handler.
 */
bool hami_gpu_used_lately(unsigned int slice);

#endif
