/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that copy get short timeslices though another thread frees some of them at the same moment, and have the driver's
 * again where it refuses one (limits/channels.h). With a driver and objects of the test's own.
 */
#include "../../../native/interposer/limits/channels.c"

#include <stdarg.h>
#include <string.h>

#include "check.h"

#define GROUPS 3
#define DRIVERS_US 1000u

static uint64_t timeslice[GROUPS]; /* of group 1, 2, ... */
static uint32_t answer[GROUPS];    /* of the driver, about a group */
static int refused_sets;           /* so many of group 2 from now on */

static uint32_t control(const struct rm_control *c)
{
	const uint32_t i = c->object - 1;
	if (answer[i] != RM_OK)
		return answer[i];
	uint64_t *us = (uint64_t *)(uintptr_t)c->params;
	if (c->command == RM_GROUP_GET_TIMESLICE)
		*us = timeslice[i];
	else if (i == 1 && refused_sets && refused_sets--)
		return RM_INVALID_ARGUMENT;
	else
		timeslice[i] = *us;
	return RM_OK;
}

static int driver(int fd, unsigned long request, ...)
{
	va_list list;
	(void)fd, (void)request;
	va_start(list, request);
	struct rm_control *c = va_arg(list, void *);
	va_end(list);
	c->status = control(c);
	return 0;
}

hami_ioctl_fn *hami_found_ioctl = driver;

hami_ioctl_fn *hami_find_ioctl(void)
{
	return driver;
}

struct hami_target *hami_objects_copying(unsigned int slice, long *count)
{
	struct hami_target *list = calloc(GROUPS, sizeof *list);
	(void)slice;
	for (uint32_t i = 0; list && i < GROUPS; i++)
		list[i] = (struct hami_target){.fd = 3, .client = 1, .object = i + 1};
	*count = GROUPS;
	return list;
}

struct hami_target *hami_objects_groups(unsigned int slice, long *count)
{
	(void)slice;
	*count = 0;
	return NULL;
}

struct hami_target *hami_objects_channels(unsigned int slice, long *count)
{
	return hami_objects_groups(slice, count);
}

int hami_objects_started(unsigned int slice)
{
	return slice != 0;
}

void hami_objects_free(uint64_t key, struct hami_sums *sums)
{
	(void)key, (void)sums;
}

void hami_memory_release_sums(const struct hami_sums *sums)
{
	(void)sums;
}

static void begin(void)
{
	for (int i = 0; i < GROUPS; i++) {
		timeslice[i] = DRIVERS_US;
		answer[i] = RM_OK;
	}
}

static bool all_have(uint64_t us)
{
	for (int i = 0; i < GROUPS; i++)
		if (answer[i] == RM_OK && timeslice[i] != us)
			return false;
	return true;
}

int main(void)
{
	begin();
	answer[0] = RM_INVALID_OBJECT_HANDLE;
	CHECK(hami_channels_copy_timeslice(0, 50) == 0 && all_have(50));
	CHECK(hami_channels_copy_timeslice(0, 0) == 0 && all_have(DRIVERS_US));
	/* All have gone: there may be others by now. */
	begin();
	answer[0] = answer[1] = answer[2] = RM_INVALID_OBJECT_HANDLE;
	CHECK(hami_channels_copy_timeslice(1, 50) == -EAGAIN);
	begin();
	CHECK(hami_channels_copy_timeslice(1, 50) == 0 && all_have(50));
	CHECK(hami_channels_copy_timeslice(1, 0) == 0 && all_have(DRIVERS_US));
	/* Short ones of some would stay for ever, as the driver is asked no more. */
	refused_sets = 1;
	CHECK(hami_channels_copy_timeslice(1, 50) == -EPERM && all_have(DRIVERS_US));
	return 0;
}
