/* SPDX-License-Identifier: Apache-2.0 */
/* Times in nanoseconds. Thread-safe, async-signal-safe, no state. */
#ifndef HAMI_CLOCK_H
#define HAMI_CLOCK_H
#include <stdint.h>
#include <time.h>

#define HAMI_NS_PER_S 1000000000ll

/* Reads CLOCK_REALTIME: the one clock that all tenants of a GPU share, in any namespace. */
int64_t hami_clock_shared(void);
/* Reads CLOCK_MONOTONIC: for spans of time within this process. */
int64_t hami_clock_steady(void);
/* Returns the time of hami_clock_shared() `ns` from now, as waits with a limit want it. */
struct timespec hami_clock_after(int64_t ns);
/* Sleeps for `ns`, whatever signals arrive. */
void hami_clock_sleep(int64_t ns);
/* Sleeps until hami_clock_shared() reaches `at`, whatever signals arrive. */
void hami_clock_sleep_until(int64_t at);
/* Returns the time `seconds` ago as NVML writes timestamps: microseconds, of whole seconds. */
unsigned long long hami_clock_nvml_since(int64_t seconds);

#endif
