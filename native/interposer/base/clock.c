/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <errno.h>

static int64_t read_clock(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * HAMI_NS_PER_S + t.tv_nsec;
}

int64_t hami_clock_shared(void)
{
	return read_clock(CLOCK_REALTIME);
}

int64_t hami_clock_steady(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

struct timespec hami_clock_after(int64_t ns)
{
	const int64_t at = hami_clock_shared() + ns;
	return (struct timespec){.tv_sec = at / HAMI_NS_PER_S, .tv_nsec = at % HAMI_NS_PER_S};
}

void hami_clock_sleep(int64_t ns)
{
	const int64_t at = hami_clock_steady() + ns;
	struct timespec t = {.tv_sec = at / HAMI_NS_PER_S, .tv_nsec = at % HAMI_NS_PER_S};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

void hami_clock_sleep_until(int64_t at)
{
	struct timespec t = {.tv_sec = at / HAMI_NS_PER_S, .tv_nsec = at % HAMI_NS_PER_S};
	while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

unsigned long long hami_clock_nvml_since(int64_t seconds)
{
	return (unsigned long long)(hami_clock_shared() / HAMI_NS_PER_S - seconds) * 1000000;
}
