/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/channels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/libc.h"
#include "driver/rm_objects.h"
#include "limits/charge.h"
#include "rm_abi.h"

static struct {
	_Atomic uint64_t timeslice_us[HAMI_SLICES]; /* 0: libcuda's own */
	uint64_t copy_us[HAMI_SLICES]; /* of groups that copy, the driver's own; 0: never changed */
} channels;

/*
 * Sends a control to `object`: 0, -EPERM when the driver refuses, -ESTALE when the client is gone, -EAGAIN when an
 * object is: another thread has freed it since the list was made.
 */
static int send_control(const struct hami_target *target, uint32_t object, uint32_t command, void *params,
			uint32_t size)
{
	struct rm_control c = {.client = target->client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	if (hami_real_ioctl()(target->fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c))
		return errno == EBADF || errno == ENOTTY ? -ESTALE : -errno;
	switch (c.status) {
	case RM_OK:
		return 0;
	case RM_INVALID_CLIENT:
		return -ESTALE;
	case RM_INVALID_CHANNEL:
	case RM_INVALID_OBJECT_HANDLE:
		return -EAGAIN;
	default:
		return -EPERM;
	}
}

/* Forgets a client whose descriptor was closed, with all that it had; passes on any other error. */
static int forget_if_stale(int rc, const struct hami_target *target)
{
	if (rc != -ESTALE)
		return rc;
	struct hami_sums sums;
	hami_objects_free(hami_object_key(target->client, target->client), &sums);
	hami_memory_release_sums(&sums);
	return 0;
}

/* Returns whether a channel is one of those that `only` names. */
static bool is_meant(const struct hami_target *target, const struct hami_only *only)
{
	if (!only)
		return true;
	size_t i = 0;
	while (i < only->count && only->contexts[i] != target->context)
		i++;
	return (i < only->count) != only->others;
}

/* Drops the channels that are not meant. Returns how many are left. */
static long keep_meant(struct hami_target *targets, long count, const struct hami_only *only)
{
	long kept = 0;
	for (long i = 0; i < count; i++)
		if (is_meant(&targets[i], only))
			targets[kept++] = targets[i];
	return count < 0 ? count : kept;
}

static int pause_meant(unsigned int slice, bool paused, const struct hami_only *only)
{
	long count;
	int rc = 0;
	struct hami_target *targets = hami_objects_channels(slice, &count);
	count = keep_meant(targets, count, only);
	for (long i = 0; i < count;) {
		const struct hami_target *first = &targets[i];
		struct rm_disable_channels list = {.disable = paused};
		for (; i < count && list.count < RM_CHANNELS_PER_CONTROL && targets[i].fd == first->fd &&
		       targets[i].client == first->client && targets[i].subdevice == first->subdevice;
		     i++) {
			list.clients[list.count] = targets[i].client;
			list.channels[list.count++] = targets[i].object;
		}
		int error = send_control(first, first->subdevice, RM_DISABLE_CHANNELS, &list, sizeof list);
		error = forget_if_stale(error, first);
		rc = error ? error : rc;
	}
	free(targets);
	return count < 0 ? -ENOMEM : rc;
}

int hami_channels_pause(unsigned int slice, bool paused, const struct hami_only *only)
{
	int rc = pause_meant(slice, paused, only);
	for (int i = 0; rc == -EAGAIN && i < 3; i++)
		rc = pause_meant(slice, paused, only);
	return rc;
}

int hami_channels_resume_others(unsigned int slice, const uint32_t *clients, const uint32_t *handles,
				uint32_t count)
{
	long own_count;
	struct rm_disable_channels list = {.count = count};
	struct hami_target *own = hami_objects_channels(slice, &own_count);
	memcpy(list.clients, clients, count * sizeof *clients);
	memcpy(list.channels, handles, count * sizeof *handles);
	int rc = own_count > 0 ? send_control(own, own->subdevice, RM_DISABLE_CHANNELS, &list, sizeof list)
			       : -ENOENT;
	free(own);
	return rc;
}

/* Sets the timeslice of these groups, which it frees. */
static int set_timeslices(struct hami_target *groups, long count, uint64_t microseconds)
{
	int rc = 0;
	for (long i = 0; i < count; i++) {
		uint64_t value = microseconds;
		int error = send_control(&groups[i], groups[i].object, RM_GROUP_SET_TIMESLICE, &value,
					 sizeof value);
		error = forget_if_stale(error, &groups[i]);
		rc = error && error != -EAGAIN ? error : rc; /* one that has gone needs none */
	}
	free(groups);
	return count < 0 ? -ENOMEM : rc;
}

int hami_channels_timeslice(unsigned int slice, uint64_t microseconds)
{
	long count;
	channels.timeslice_us[slice] = microseconds;
	if (!microseconds)
		return 0;
	struct hami_target *groups = hami_objects_groups(slice, &count);
	return set_timeslices(groups, count, microseconds);
}

/* Reads a timeslice from the first of these groups that is still there. -EAGAIN: all have gone. */
static int read_timeslice(const struct hami_target *groups, long count, uint64_t *us)
{
	int rc = -EAGAIN;
	for (long i = 0; i < count && rc == -EAGAIN; i++) {
		rc = send_control(&groups[i], groups[i].object, RM_GROUP_GET_TIMESLICE, us, sizeof *us);
		rc = rc == -ESTALE && !forget_if_stale(rc, &groups[i]) ? -EAGAIN : rc;
	}
	return rc;
}

int hami_channels_copy_timeslice(unsigned int slice, uint64_t microseconds)
{
	long count;
	uint64_t *drivers = &channels.copy_us[slice];
	if (!microseconds && !*drivers)
		return 0;
	struct hami_target *groups = hami_objects_copying(slice, &count);
	int rc = count > 0 && !*drivers ? read_timeslice(groups, count, drivers) : 0;
	if (rc || !*drivers) {
		*drivers = 0;
		free(groups);
		return count < 0 ? -ENOMEM : rc;
	}
	rc = set_timeslices(groups, count, microseconds ? microseconds : *drivers);
	if (rc && microseconds) {
		groups = hami_objects_copying(slice, &count);
		set_timeslices(groups, count, *drivers);
	}
	return rc;
}

uint64_t hami_channels_wanted_timeslice(unsigned int slice)
{
	return channels.timeslice_us[slice];
}

void hami_channels_resume(unsigned int slice)
{
	for (int i = 0; hami_channels_pause(slice, false, NULL) && hami_objects_started(slice); i++) {
		struct timespec t = {.tv_sec = i < 100 ? 0 : 1, .tv_nsec = i < 100 ? 10000000 : 0};
		nanosleep(&t, NULL);
	}
}
