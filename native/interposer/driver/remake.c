/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/remake.h"

#include <string.h>
#include <sys/ioctl.h>

#include "driver/libc.h"

static bool unmap(const struct hami_movable *m)
{
	struct uvm_unmap_external request = {.base = m->base, .length = m->length};
	memcpy(request.gpu_uuid, m->gpu.gpu_uuid, sizeof request.gpu_uuid);
	return !hami_real_ioctl()(m->uvm_fd, UVM_UNMAP_EXTERNAL, &request) && !request.status;
}

static bool free_one(int fd, const struct rm_alloc *made)
{
	struct rm_free f = {.client = made->client, .parent = made->parent, .object = made->object};
	return !hami_real_ioctl()(fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f) && !f.status;
}

static bool has_fabric(const struct hami_movable *m)
{
	return m->fabric.request.object != 0;
}

static bool map(const struct hami_movable *m)
{
	static struct uvm_map_external request; /* 9 KB; one thread */
	request = (struct uvm_map_external){.base = m->base,
					    .length = m->length,
					    .count = 1,
					    .control_fd = m->control_fd,
					    .client = m->request.client,
					    .memory = m->request.object};
	request.gpu[0] = m->gpu;
	return !hami_real_ioctl()(m->uvm_fd, UVM_MAP_EXTERNAL, &request) && !request.status;
}

/* Returns the status of a request that is made again with its own parameters. */
static uint32_t make_one(int fd, struct rm_alloc a, void *params)
{
	a.params = (uint64_t)(uintptr_t)params;
	a.status = RM_OK;
	return hami_real_ioctl()(fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) ? RM_NOT_SUPPORTED
										   : a.status;
}

static uint32_t make_fabric(const struct hami_movable *m)
{
	struct rm_fabric params = m->fabric.params;
	return has_fabric(m) ? make_one(m->fd, m->fabric.request, &params) : RM_OK;
}

static uint32_t make(const struct hami_movable *m)
{
	struct rm_memory_params params = m->params;
	uint32_t status = make_one(m->fd, m->request, &params);
	if (status != RM_OK)
		return status;
	status = make_fabric(m);
	if (status == RM_OK)
		return map(m) ? RM_OK : RM_INVALID_ARGUMENT;
	/* There is no room for another address on NVLink; there will be. */
	const bool is_full = status == RM_NO_MEMORY || status == RM_INSUFFICIENT_RESOURCES;
	return is_full && free_one(m->fd, &m->request) ? RM_NO_MEMORY : RM_INVALID_ARGUMENT;
}

static bool unmake(const struct hami_movable *m)
{
	return unmap(m) && (!has_fabric(m) || free_one(m->fd, &m->fabric.request)) &&
	       free_one(m->fd, &m->request);
}

bool hami_remake_free(const struct hami_movable *m, bool *lost)
{
	if (!unmap(m))
		return false;
	if (has_fabric(m) && !free_one(m->fd, &m->fabric.request)) {
		*lost = !map(m);
		return false;
	}
	if (free_one(m->fd, &m->request))
		return true;
	*lost = make_fabric(m) != RM_OK || !map(m);
	return false;
}

uint32_t hami_remake_all(const struct hami_movable *objects, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t status = make(&objects[i]);
		if (status == RM_OK)
			continue;
		while (status == RM_NO_MEMORY && i--)
			if (!unmake(&objects[i]))
				status = RM_INVALID_ARGUMENT;
		return status;
	}
	return RM_OK;
}
