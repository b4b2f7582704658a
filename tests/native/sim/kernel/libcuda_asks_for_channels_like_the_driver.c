/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

static int count_class(uint32_t class_id)
{
	int n = 0;
	for (int i = 0; i < watch.objects; i++)
		n += watch.object[i].class_id == class_id;
	return n;
}

static void child(void *unused)
{
	(void)unused;
	memset(&watch, 0, sizeof watch);
	open_device();
	CHECK(count_class(RM_CLASS_CLIENT) == 1 && compute_channels(true, 64).count == 8);
	CHECK(set_disabled(true) == RM_OK && set_disabled(false) == RM_OK);
}

int main(void)
{
	make_machine("h200");
	OK(cuInit(0));
	CHECK(watch.objects == 0);
	CUcontext context = open_device(), second;
	CHECK(count_class(RM_CLASS_SUBDEVICE) == 1);
	CHECK(count_class(RM_CLASS_GROUP) == 4);
	CHECK(compute_channels(true, 64).count == 8);
	CHECK(count_class(0xc86f) > 8); /* copies have channels too, in groups of their own */
	CHECK(watch.timeslices == 1 && watch.timeslice_us == 2048);
	uint32_t first_group = watch.compute_group;
	const struct seen *s = subdevice();
	uint64_t us = 0;
	CHECK(control(s->fd, s->client, first_group, RM_GROUP_GET_TIMESLICE, &us, sizeof us) == RM_OK &&
	      us == 2048);
	CHECK(set_timeslice(500) == RM_OK);
	CHECK(control(s->fd, s->client, first_group, RM_GROUP_GET_TIMESLICE, &us, sizeof us) == RM_OK &&
	      us == 500);
	OK(cuCtxCreate(&second, NULL, 0, 0));
	CHECK(watch.timeslices == 2 && watch.compute_group != first_group &&
	      count_class(RM_CLASS_GROUP) == 8);
	CHECK(child_status(start_child(child, NULL)) == 0);
	OK(cuCtxDestroy(second));
	OK(cuCtxDestroy(context));
	CHECK(watch.frees == 2);
	CHECK(set_disabled(true) == RM_INVALID_OBJECT_HANDLE); /* all of it is gone */
	return 0;
}
