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

static bool free_object(const struct hami_movable *m)
{
	struct rm_free f = {
		.client = m->request.client, .parent = m->request.parent, .object = m->request.object};
	return !hami_real_ioctl()(m->fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f) && !f.status;
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

static uint32_t make(const struct hami_movable *m)
{
	struct rm_memory_params params = m->params;
	struct rm_alloc a = m->request;
	a.params = (uint64_t)(uintptr_t)&params;
	a.status = RM_OK;
	if (hami_real_ioctl()(m->fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a))
		return RM_NOT_SUPPORTED;
	if (a.status == RM_OK && !map(m))
		return RM_INVALID_ARGUMENT;
	return a.status;
}

bool hami_remake_free(const struct hami_movable *m, bool *lost)
{
	if (!unmap(m))
		return false;
	if (free_object(m))
		return true;
	*lost = !map(m);
	return false;
}

uint32_t hami_remake_all(const struct hami_movable *objects, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t status = make(&objects[i]);
		if (status == RM_OK)
			continue;
		while (status == RM_NO_MEMORY && i--)
			if (!unmap(&objects[i]) || !free_object(&objects[i]))
				status = RM_INVALID_ARGUMENT;
		return status;
	}
	return RM_OK;
}
