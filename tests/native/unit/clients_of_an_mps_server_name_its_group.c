/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of an MPS server has its channels below a duplicate of the server's group: that is a group whose timeslice it can
 * set, and none of its channels is one that can be paused (driver/rm_objects.h). As an H200's driver 580 asks for them. In
 * any other job channels below a duplicate are paused.
 */
#include "../../../native/interposer/base/lock.c"
#include "../../../native/interposer/driver/rm_objects.c"

#include "check.h"

#define CLIENT_HANDLE 0xc1d0003eu
#define HOPPER_CHANNEL 0xc86fu

enum {
	OWN_CLIENT = CLIENT_HANDLE,
	THE_DEVICE = 3,
	THE_SUBDEVICE,
	SERVERS,
	FIRST,
	SECOND,
	MEMORY,
	COPIES,
	COPY,
	UNKNOWN
};

static uint64_t key(uint32_t handle)
{
	return hami_object_key(CLIENT_HANDLE, handle);
}

static enum hami_duplicate kind_of_duplicate = HAMI_DUPLICATE_OF_SERVER;

static void add(uint32_t class_id, uint32_t handle, uint32_t parent)
{
	struct hami_object *object = hami_object_new();
	CHECK(object != NULL);
	struct hami_made made = {.duplicate = class_id ? HAMI_NO_DUPLICATE : kind_of_duplicate,
				 .fd = 3,
				 .class_id = class_id,
				 .parent = key(parent),
				 .key = key(handle)};
	hami_objects_add(object, &made);
}

static long count_of(struct hami_target *list, long count)
{
	free(list);
	return count;
}

static long channels(void)
{
	long count;
	struct hami_target *list = hami_objects_channels(0, &count);
	return count_of(list, count);
}

static long groups_named(uint32_t handle)
{
	long count, named = 0;
	struct hami_target *list = hami_objects_groups(0, &count);
	for (long i = 0; i < count; i++)
		named += list[i].object == handle && list[i].client == CLIENT_HANDLE &&
			 list[i].subdevice == THE_SUBDEVICE && list[i].fd == 3;
	return count_of(list, named);
}

int main(void)
{
	struct hami_sums gone;
	add(RM_CLASS_CLIENT, OWN_CLIENT, 0);
	add(RM_CLASS_DEVICE, THE_DEVICE, OWN_CLIENT);
	add(RM_CLASS_SUBDEVICE, THE_SUBDEVICE, THE_DEVICE);
	add(0, SERVERS, THE_DEVICE);
	add(0, MEMORY, THE_DEVICE); /* imported from another process: it has no channels */
	add(HOPPER_CHANNEL, FIRST, SERVERS);
	CHECK(groups_named(SERVERS) == 0); /* not at work yet */
	CHECK(hami_objects_start(key(FIRST), false) == 0);
	CHECK(groups_named(SERVERS) == 1 && channels() == 0);
	add(HOPPER_CHANNEL, SECOND, SERVERS);
	CHECK(hami_objects_start(key(SECOND), false) == 0);
	CHECK(groups_named(SERVERS) == 2 && groups_named(MEMORY) == 0 && channels() == 0);
	/* What it has of its own is as ever. */
	add(RM_CLASS_GROUP, COPIES, THE_DEVICE);
	add(HOPPER_CHANNEL, COPY, COPIES);
	CHECK(hami_objects_start(key(COPY), true) == 0);
	CHECK(groups_named(COPIES) == 1 && channels() == 1);
	/* A duplicate of something below nothing known, and starting what is no work. */
	add(0, UNKNOWN, 0x77);
	CHECK(hami_objects_start(key(UNKNOWN), true) == -1 && hami_objects_start(key(MEMORY), true) == -1);
	hami_objects_free(key(FIRST), &gone);
	CHECK(groups_named(SERVERS) == 1);
	hami_objects_free(key(SERVERS), &gone);
	CHECK(groups_named(SERVERS) == 0 && channels() == 1 && hami_objects_started(0) == 1);
	kind_of_duplicate = HAMI_DUPLICATE;
	add(0, SERVERS, THE_DEVICE);
	add(HOPPER_CHANNEL, FIRST, SERVERS);
	add(HOPPER_CHANNEL, SECOND, SERVERS);
	CHECK(hami_objects_start(key(SECOND), false) == 0);
	CHECK(groups_named(SERVERS) == 1 && channels() == 3);
	hami_objects_free(key(OWN_CLIENT), &gone);
	CHECK(channels() == 0 && hami_objects_started(0) == 0);
	return 0;
}
