/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include "mps.h"
#include "rm.h"

/* Whether MPS lets this process have so much more on the GPU. With the shared mutex held. */
static bool mps_lets(uint32_t gpu, uint64_t bytes)
{
	const struct sim_share *own = &sim.view.state->slot[sim.view.slot].gpu[gpu];
	return sim_mps_fits(own->used_bytes - own->context_bytes, bytes);
}

static bool count(uint32_t gpu, uint64_t bytes, enum memory_use use)
{
	sim_lock(&sim.view);
	bool fits = use == MEMORY_CONTEXT || mps_lets(gpu, bytes);
	int rc = fits ? sim_charge(&sim.view, gpu, bytes) : -1;
	sim_unlock(&sim.view);
	return rc == 0;
}

/* Of an object with this handle. With rm.lock held. */
static uint32_t allocate(const struct device_memory *m)
{
	uint32_t *device = &rm.memory_device[m->gpu];
	if (!*device && !rm_allocate_device(m->gpu, device)) {
		*device = 0;
		return RM_INSUFFICIENT_RESOURCES;
	}
	struct rm_memory p = {.size = m->asked};
	struct rm_alloc a = {.client = rm.handle,
			     .parent = *device,
			     .object = m->object,
			     .class_id = RM_CLASS_DEVICE_MEMORY,
			     .params = (uint64_t)(uintptr_t)&p,
			     .size = sizeof p};
	return ioctl(rm.fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) ? RM_NOT_SUPPORTED : a.status;
}

/* On a machine with several GPUs, as libcuda does: of 1 GiB, with pages of 512 MiB, and not of 64 MiB. */
static void make_fabric(struct device_memory *m)
{
	const uint64_t least = 32ull << 20, page = 2ull << 20;
	if (sim.view.machine.gpu_count < 2 || m->bytes < least || m->bytes % page)
		return;
	struct rm_fabric p = {.alignment = page, .size = m->bytes, .page_bytes = page, .memory = m->object};
	struct rm_alloc a = {.client = rm.handle,
			     .parent = rm.memory_device[m->gpu],
			     .object = RM_MEMORY_HANDLES + rm.memories + 1,
			     .class_id = RM_CLASS_FABRIC,
			     .params = (uint64_t)(uintptr_t)&p};
	if (ioctl(rm.fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) || a.status != RM_OK)
		return;
	rm.memories++;
	m->fabric = a.object;
}

/* With rm.lock held, so that no other thread's memory comes between the question and the charge. */
static bool take(struct device_memory *m, enum memory_use use)
{
	sim_lock(&sim.view);
	bool fits = use == MEMORY_CONTEXT || mps_lets(m->gpu, m->bytes);
	sim_unlock(&sim.view);
	m->object = RM_MEMORY_HANDLES + rm.memories + 1;
	if (!fits || allocate(m) != RM_OK)
		return false;
	rm.memories++;
	make_fabric(m);
	return true;
}

CUresult sim_memory_take(struct device_memory *out, uint32_t gpu, uint64_t bytes, enum memory_use use)
{
	return sim_memory_take_pages(out, gpu, bytes, bytes, use);
}

CUresult sim_memory_take_pages(struct device_memory *out, uint32_t gpu, uint64_t bytes, uint64_t asked,
			       enum memory_use use)
{
	struct device_memory m = {.bytes = bytes, .asked = asked, .gpu = gpu};
	pthread_mutex_lock(&rm.lock);
	bool by_kernel = use != MEMORY_MANAGED && rm_open();
	bool taken = by_kernel && take(&m, use);
	pthread_mutex_unlock(&rm.lock);
	if (!by_kernel)
		taken = count(gpu, bytes, use);
	if (!taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = m;
	return CUDA_SUCCESS;
}

void sim_memory_give(struct device_memory *m, uint64_t shared_id)
{
	if (m->object) {
		pthread_mutex_lock(&rm.lock);
		rm_unmake(rm.memory_device[m->gpu], m->object);
		if (m->fabric)
			rm_unmake(rm.memory_device[m->gpu], m->fabric);
		pthread_mutex_unlock(&rm.lock);
	} else if (m->bytes) {
		sim_lock(&sim.view);
		if (shared_id)
			sim_shared_leave(&sim.view, shared_id);
		else
			sim_uncharge(&sim.view, m->gpu, m->bytes);
		sim_unlock(&sim.view);
	}
	*m = (struct device_memory){0};
}

void sim_memory_share(const struct device_memory *m, uint64_t id)
{
	if (!m->object)
		return;
	pthread_mutex_lock(&rm.lock);
	rm_ask(m->object, RM_SIM_SHARE, &id, sizeof id);
	pthread_mutex_unlock(&rm.lock);
}

static bool answered(void)
{
	pthread_mutex_lock(&rm.lock);
	bool open = rm_open();
	pthread_mutex_unlock(&rm.lock);
	return open;
}

bool sim_range_make(uintptr_t base, size_t bytes)
{
	struct uvm_create_range c = {.base = base, .length = bytes};
	return !answered() || (ioctl(rm.uvm_fd, UVM_CREATE_EXTERNAL_RANGE, &c) == 0 && c.status == RM_OK);
}

void sim_range_free(uintptr_t base, size_t bytes)
{
	struct uvm_free f = {.base = base, .length = bytes};
	if (answered())
		ioctl(rm.uvm_fd, UVM_FREE, &f);
}

bool sim_memory_map(const struct device_memory *m, uintptr_t base, size_t bytes)
{
	if (!m->object)
		return true;
	struct uvm_map_external map = {.base = base,
				       .length = bytes,
				       .count = 1,
				       .control_fd = rm.fd,
				       .client = rm.handle,
				       .memory = m->object};
	sim_uuid_bytes(&sim.view.machine.gpu[m->gpu], map.gpu[0].gpu_uuid);
	return ioctl(rm.uvm_fd, UVM_MAP_EXTERNAL, &map) == 0 && map.status == RM_OK;
}

void sim_memory_unmap(const struct device_memory *m, uintptr_t base, size_t bytes)
{
	struct uvm_unmap_external u = {.base = base, .length = bytes};
	if (!m->object)
		return;
	sim_uuid_bytes(&sim.view.machine.gpu[m->gpu], u.gpu_uuid);
	ioctl(rm.uvm_fd, UVM_UNMAP_EXTERNAL, &u);
}
