/* SPDX-License-Identifier: Apache-2.0 */
/* What of a process's device memory stays on the GPU when the rest is moved, and why. Thread-safe, not async-signal-safe. */
#ifndef HAMI_STAYS_H
#define HAMI_STAYS_H
#include <stdint.h>

/* Logs it: objects of `moved` bytes were, small ones below `least` were not, and `stack` bytes libcuda gave back. */
void hami_stays_log(uint64_t least, uint64_t moved, uint64_t stack);

#endif
