/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a program of CUDA: gives its compute group the timeslice of HAMI_TEST_TIMESLICE="US" instead of
 * libcuda's, and with "US PER_S" sets it anew so often a second, from a thread of its own, as any user may.
 *
 *   gcc -shared -fPIC -Inative/include tests/gpu/timeslices.c -o timeslices.so
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rm_abi.h"

static struct {
	int fd;
	uint32_t client, group;
} named; /* by the first call of libcuda that sets a timeslice, which is for the compute group */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int real_ioctl(int fd, unsigned long request, void *argument)
{
	static int (*real)(int, unsigned long, ...);
	if (!real)
		real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return real(fd, request, argument);
}

static bool set(uint64_t us)
{
	struct rm_control c = {.client = named.client,
			       .object = named.group,
			       .command = RM_GROUP_SET_TIMESLICE,
			       .params = (uint64_t)(uintptr_t)&us,
			       .size = sizeof us};
	return !real_ioctl(named.fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c) && c.status == RM_OK;
}

static void *set_again(void *per_second)
{
	const long gap = 1000000000L / (long)(intptr_t)per_second;
	const uint64_t us = strtoull(getenv("HAMI_TEST_TIMESLICE"), NULL, 10);
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	for (unsigned int count = 0;;
	     count++) { /* another value each time: no driver may take it for the same */
		if (!set(us - count % 2)) {
			fputs("timeslices: refused\n", stderr);
			return NULL;
		}
		at.tv_nsec += gap % 1000000000L;
		at.tv_sec += gap / 1000000000L + at.tv_nsec / 1000000000L;
		at.tv_nsec %= 1000000000L;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
}

static void begin(void)
{
	const char *text = getenv("HAMI_TEST_TIMESLICE");
	unsigned long long us = 0;
	long per_second = 0;
	pthread_t thread;
	if (!text || sscanf(text, "%llu %ld", &us, &per_second) < 1)
		return;
	if (!set(us))
		fputs("timeslices: refused\n", stderr);
	if (per_second > 0 && !pthread_create(&thread, NULL, set_again, (void *)(intptr_t)per_second))
		pthread_detach(thread);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	struct rm_control *c = va_arg(list, void *);
	va_end(list);
	const int rc = real_ioctl(fd, request, c);
	if (rc || request != RM_REQUEST(RM_NR_CONTROL, struct rm_control) ||
	    c->command != RM_GROUP_SET_TIMESLICE)
		return rc;
	if (!named.client) {
		named.fd = fd;
		named.client = c->client;
		named.group = c->object;
	}
	pthread_once(&once, begin);
	return rc;
}
