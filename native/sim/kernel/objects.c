/* SPDX-License-Identifier: Apache-2.0 */
#include "objects.h"

#include <string.h>

enum { OBJECTS_MAX = 4096 };

static struct {
	struct object object[OBJECTS_MAX];
	uint32_t count, clients;
} table;

static struct object *find(uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; i < table.count; i++)
		if (table.object[i].client == client && table.object[i].handle == handle)
			return &table.object[i];
	return NULL;
}

struct object *objects_find(uint32_t client, uint32_t handle, int fd)
{
	struct object *o = find(client, handle);
	return o && o->fd == fd ? o : NULL;
}

/* What each class hangs below. */
static bool right_parent(uint32_t class_id, const struct object *parent)
{
	switch (class_id) {
	case RM_CLASS_DEVICE:
		return parent->class_id == RM_CLASS_CLIENT;
	case RM_CLASS_SUBDEVICE:
	case RM_CLASS_GROUP:
		return parent->class_id == RM_CLASS_DEVICE;
	default:
		return parent->class_id == RM_CLASS_GROUP;
	}
}

static uint32_t inherit(struct object *o, uint32_t parameter)
{
	const struct object *parent = objects_find(o->client, o->parent, o->fd);
	if (!parent)
		return find(o->client, o->parent) ? RM_INVALID_CLIENT : RM_INVALID_OBJECT_HANDLE;
	if (!right_parent(o->class_id, parent) || find(o->client, o->handle))
		return RM_INVALID_ARGUMENT;
	o->gpu = o->class_id == RM_CLASS_DEVICE ? parameter : parent->gpu;
	o->compute = o->class_id == RM_CLASS_GROUP ? parameter == RM_ENGINE_COMPUTE : parent->compute;
	return RM_OK;
}

uint32_t objects_add(const struct rm_alloc *a, int fd, uint32_t parameter, struct object **out)
{
	struct object o = {.client = a->client,
			   .parent = a->parent,
			   .handle = a->object,
			   .class_id = a->class_id,
			   .fd = fd};
	if (table.count == OBJECTS_MAX)
		return RM_INSUFFICIENT_RESOURCES;
	if (a->class_id == RM_CLASS_CLIENT) {
		o.client = o.handle = RM_CLIENT_HANDLES + ++table.clients;
		o.parent = 0;
	} else if (a->class_id == RM_CLASS_DEVICE || a->class_id == RM_CLASS_SUBDEVICE ||
		   a->class_id == RM_CLASS_GROUP || object_is_channel(&o)) {
		uint32_t status = inherit(&o, parameter);
		if (status != RM_OK)
			return status;
	} else {
		return RM_INVALID_CLASS;
	}
	table.object[table.count] = o;
	*out = &table.object[table.count++];
	return RM_OK;
}

static void free_tree(uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; i < table.count;) {
		if (table.object[i].client == client && table.object[i].parent == handle &&
		    table.object[i].handle != handle) {
			free_tree(client, table.object[i].handle);
			i = 0;
		} else {
			i++;
		}
	}
	struct object *o = find(client, handle);
	if (o)
		*o = table.object[--table.count];
}

uint32_t objects_free(uint32_t client, uint32_t handle, int fd)
{
	if (!objects_find(client, handle, fd))
		return RM_INVALID_OBJECT_HANDLE;
	free_tree(client, handle);
	return RM_OK;
}

bool objects_all_disabled(uint32_t gpu)
{
	uint32_t channels = 0;
	for (uint32_t i = 0; i < table.count; i++) {
		const struct object *o = &table.object[i];
		if (!object_is_channel(o) || !o->compute || o->gpu != gpu)
			continue;
		if (!o->disabled)
			return false;
		channels++;
	}
	return channels > 0;
}

void objects_forget(void)
{
	memset(&table, 0, sizeof table);
}
