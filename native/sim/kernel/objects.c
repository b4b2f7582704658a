/* SPDX-License-Identifier: Apache-2.0 */
#include "objects.h"

#include "events.h"
#include "uvm.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 16 };

static struct {
	struct object *bucket[BUCKETS];
	struct object *clients_list;
	uint32_t handles; /* chosen so far */
} table;

static struct object **bucket_of(uint32_t client, uint32_t handle)
{
	return &table.bucket[(client * 31u ^ handle * 2654435761u >> 8 ^ handle) % BUCKETS];
}

struct object *objects_find_any(uint32_t client, uint32_t handle)
{
	struct object *o = *bucket_of(client, handle);
	while (o && (o->client != client || o->handle != handle))
		o = o->chain;
	return o;
}

struct object *objects_find(uint32_t client, uint32_t handle, int fd)
{
	struct object *o = objects_find_any(client, handle);
	return o && o->fd == fd ? o : NULL;
}

/* What each class hangs below. */
static bool right_parent(uint32_t class_id, const struct object *parent)
{
	switch (class_id) {
	case RM_CLASS_DEVICE:
	case RM_CLASS_EVENT_BUFFER:
	case RM_CLASS_DEVICELESS_MEMORY:
		return parent->class_id == RM_CLASS_CLIENT;
	case RM_CLASS_SUBDEVICE:
	case RM_CLASS_GROUP:
		return parent->class_id == RM_CLASS_DEVICE;
	case RM_CLASS_DEVICE_MEMORY:
	case RM_CLASS_FABRIC: /* NVIDIA's: below a subdevice, which the simulated libcuda has none of */
		return parent->class_id == RM_CLASS_DEVICE || parent->class_id == RM_CLASS_SUBDEVICE;
	case RM_CLASS_HOST_MEMORY:
	case RM_CLASS_VIRTUAL_MEMORY:
		return parent->class_id == RM_CLASS_DEVICE;
	default:
		return parent->class_id == RM_CLASS_GROUP;
	}
}

static uint32_t inherit(struct object *o, uint32_t parameter, struct object **above)
{
	struct object *parent = objects_find(o->client, o->parent, o->fd);
	if (!parent)
		return objects_find_any(o->client, o->parent) ? RM_INVALID_CLIENT : RM_INVALID_OBJECT_HANDLE;
	if (!right_parent(o->class_id, parent) || objects_find_any(o->client, o->handle))
		return RM_INVALID_ARGUMENT;
	o->gpu = o->class_id == RM_CLASS_DEVICE ? parameter : parent->gpu;
	o->compute = o->class_id == RM_CLASS_GROUP ? parameter == RM_ENGINE_COMPUTE : parent->compute;
	o->timeslice_us = o->class_id == RM_CLASS_GROUP && !o->compute ? SIM_COPY_TIMESLICE_US : 0;
	*above = parent;
	return RM_OK;
}

static void insert(struct object *o, struct object *above)
{
	struct object **bucket = bucket_of(o->client, o->handle);
	struct object **first = above ? &above->below : &table.clients_list;
	o->chain = *bucket;
	*bucket = o;
	o->above = above;
	o->next = *first;
	if (o->next)
		o->next->link = &o->next;
	o->link = first;
	*first = o;
}

uint32_t objects_add(const struct rm_alloc *a, int fd, uint32_t parameter, struct object **out)
{
	struct object o = {.client = a->client,
			   .parent = a->parent,
			   .handle = a->object,
			   .class_id = a->class_id,
			   .fd = fd};
	struct object *above = NULL;
	if (a->class_id == RM_CLASS_CLIENT) {
		o.client = o.handle = parameter;
		o.parent = 0;
	} else if (a->class_id == RM_CLASS_DEVICE || a->class_id == RM_CLASS_SUBDEVICE ||
		   a->class_id == RM_CLASS_GROUP || class_is_memory(a->class_id) ||
		   class_is_of_events(a->class_id) || object_is_channel(&o)) {
		if (!o.handle)
			o.handle = 0xcaf00000u + ++table.handles;
		uint32_t status = inherit(&o, parameter, &above);
		if (status != RM_OK)
			return status;
	} else {
		return RM_INVALID_CLASS;
	}
	struct object *kept = malloc(sizeof *kept);
	if (!kept)
		return RM_INSUFFICIENT_RESOURCES;
	*kept = o;
	insert(kept, above);
	*out = kept;
	return RM_OK;
}

static void free_tree(struct object *o, void (*gone)(const struct object *object))
{
	while (o->below)
		free_tree(o->below, gone);
	bool last = o->memory && --o->memory->holders == 0;
	if (gone && (last || (object_is_channel(o) && o->compute)))
		gone(o);
	uvm_object_freed(o, last);
	if (last)
		free(o->memory);
	events_free(o);
	struct object **at = bucket_of(o->client, o->handle);
	while (*at != o)
		at = &(*at)->chain;
	*at = o->chain;
	*o->link = o->next;
	if (o->next)
		o->next->link = o->link;
	free(o);
}

uint32_t objects_free(uint32_t client, uint32_t handle, int fd, void (*gone)(const struct object *object))
{
	struct object *o = objects_find(client, handle, fd);
	if (!o)
		return RM_INVALID_OBJECT_HANDLE;
	free_tree(o, gone);
	return RM_OK;
}

static void count_groups(const struct object *first, uint32_t gpu, struct rm_sim_channels *sums)
{
	for (const struct object *o = first; o; o = o->next) {
		if (o->class_id == RM_CLASS_GROUP && o->compute && o->gpu == gpu) {
			sums->groups++;
			if (o->timeslice_us < sums->least_timeslice_us)
				sums->least_timeslice_us = o->timeslice_us;
			if (o->timeslice_us > sums->most_timeslice_us)
				sums->most_timeslice_us = o->timeslice_us;
		} else if (o->class_id == RM_CLASS_CLIENT || o->class_id == RM_CLASS_DEVICE) {
			count_groups(o->below, gpu, sums);
		}
	}
}

struct rm_sim_channels objects_groups(uint32_t gpu)
{
	struct rm_sim_channels sums = {.least_timeslice_us = UINT32_MAX};
	count_groups(table.clients_list, gpu, &sums);
	return sums;
}

void objects_forget(void)
{
	memset(&table, 0, sizeof table);
}
