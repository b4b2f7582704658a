/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

#include <nvml.h>

static const size_t LARGE = 64 * MIB, SMALL = 4096;

static struct {
	CUdeviceptr large, small, pool, mapped;
	CUmemGenericAllocationHandle handle;
} mine;

static void fill(CUdeviceptr address, size_t size, unsigned value)
{
	OK(cuMemsetD32(address, value, size / sizeof value));
}

/* All of it, not only the first page. */
static bool is_filled(CUdeviceptr address, size_t size, unsigned value)
{
	static unsigned copy[1 << 24];
	CHECK(size <= sizeof copy);
	OK(cuMemcpyDtoH(copy, address, size));
	for (size_t i = 0; i < size / sizeof value; i++)
		if (copy[i] != value)
			return false;
	return true;
}

static void allocate_in_every_way(void)
{
	CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAlloc(&mine.large, LARGE));
	OK(cuMemAlloc(&mine.small, SMALL));
	OK(cuMemAllocAsync(&mine.pool, SMALL, NULL));
	OK(cuMemCreate(&mine.handle, LARGE, &p, 0));
	OK(cuMemAddressReserve(&mine.mapped, 2 * LARGE, 0, 0, 0));
	OK(cuMemMap(mine.mapped + LARGE, LARGE, 0, mine.handle, 0));
	OK(cuMemSetAccess(mine.mapped + LARGE, LARGE, &access, 1));
	mine.mapped += LARGE;
}

static void fill_all(unsigned value)
{
	fill(mine.large, LARGE, value);
	fill(mine.small, SMALL, value + 1);
	fill(mine.pool, SMALL, value + 2);
	fill(mine.mapped, LARGE, value + 3);
}

static void check_all(unsigned value, unsigned step)
{
	CHECK(is_filled(mine.large, LARGE, value));
	CHECK(is_filled(mine.small, SMALL, value + step));
	CHECK(is_filled(mine.pool, SMALL, value + 2 * step));
	CHECK(is_filled(mine.mapped, LARGE, value + 3 * step));
}

static void touch(void *address)
{
	(void)*(volatile char *)address;
}

/* In a child, which has the parent's address space. */
static bool is_out_of_reach(CUdeviceptr address)
{
	signal(SIGSEGV, SIG_DFL);
	int status = child_status(start_child(touch, (void *)(uintptr_t)address));
	return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
}

static size_t used_as_nvml_shows_it(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(nvmlInit() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex(0, &device) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	return memory.used;
}

static void every_object_is_one_mapping(void)
{
	size_t sum = 0;
	CHECK(held.count == 3 + 4); /* the context's own, and what was asked for */
	for (int i = 0; i < held.count; i++) {
		CHECK(held.of[i].map.length == held.of[i].params.size);
		sum += held.of[i].params.size;
	}
	CHECK(sum == used_bytes());
	CHECK(held_at(mine.large)->map.base == mine.large && held_at(mine.large)->map.length == LARGE);
	CHECK(held_at(mine.mapped)->map.base == mine.mapped);
}

/* Each time the sums fall by the object's size and grow again. */
static void goes_and_comes_back(void)
{
	size_t all = used_bytes(), left = all;
	size_t shown = used_as_nvml_shows_it();
	for (int i = 0; i < held.count; i++) {
		take_away(&held.of[i]);
		left -= held.of[i].params.size;
		CHECK(used_bytes() == left);
		CHECK(is_out_of_reach(held.of[i].map.base));
	}
	CHECK(left == 0 && used_as_nvml_shows_it() == shown - all);
	for (int i = held.count - 1; i >= 0; i--)
		give_back(&held.of[i]);
	CHECK(used_bytes() == all && used_as_nvml_shows_it() == shown);
}

static void an_unmapped_object_keeps_its_bytes(void)
{
	const struct held *h = held_at(mine.large);
	size_t before = used_bytes();
	fill_all(7);
	CHECK(unmap_external(h, mine.large, LARGE) == RM_OK);
	CHECK(unmap_external(h, mine.large, LARGE) == RM_OK); /* the range is there, and empty */
	CHECK(is_out_of_reach(mine.large) && is_out_of_reach(mine.large + LARGE - 1));
	CHECK(used_bytes() == before);
	CHECK(map_external(h) == RM_OK);
	check_all(7, 1);
}

static void what_is_mapped_when_it_is_freed_is_lost_too(void)
{
	struct held *h = held_at(mine.large);
	fill_all(7);
	CHECK(free_object(h) == RM_OK);
	CHECK(is_out_of_reach(mine.large));
	give_back(h);
	CHECK(is_filled(mine.large, LARGE, 0));
	CHECK(is_filled(mine.mapped, LARGE, 10));
}

static void what_is_not_there_is_refused(void)
{
	struct held *h = held_at(mine.large), wrong = *h;
	CHECK(allocate_object(h) == RM_INVALID_ARGUMENT); /* the handle is in use */
	CHECK(unmap_external(h, 0x1000, LARGE) == UVM_INVALID_ADDRESS);
	CHECK(unmap_external(h, mine.large, 3 * LARGE) == UVM_INVALID_ADDRESS);
	CHECK(unmap_external(h, mine.large + 1, LARGE) == UVM_INVALID_ADDRESS);
	wrong.map.base = 0x1000;
	CHECK(map_external(&wrong) == UVM_INVALID_ADDRESS);
	wrong.map.base = h->map.base;
	wrong.map.gpu[0].gpu_uuid[0] ^= 1;
	CHECK(map_external(&wrong) == UVM_INVALID_DEVICE);
	CHECK(unmap_external(&wrong, mine.large, LARGE) == UVM_INVALID_DEVICE);
	wrong = *h;
	wrong.map.offset = 2 * MIB;
	CHECK(map_external(&wrong) == UVM_INVALID_OFFSET);
	wrong.map.offset = 0;
	wrong.map.count = 0;
	CHECK(map_external(&wrong) == RM_INVALID_ARGUMENT);
	take_away(h);
	CHECK(free_object(h) == RM_INVALID_OBJECT_HANDLE);
	CHECK(map_external(h) == RM_OBJECT_NOT_FOUND);
	give_back(h);
}

/* libcuda may free what is gone already, and what came back. */
static void all_is_freed_in_the_end(size_t context_bytes)
{
	take_away(held_at(mine.small));
	watch_memory = NULL;
	OK(cuMemFree(mine.small));
	OK(cuMemFree(mine.large));
	OK(cuMemFree(mine.pool));
	OK(cuMemUnmap(mine.mapped, LARGE));
	OK(cuMemAddressFree(mine.mapped - LARGE, 2 * LARGE));
	OK(cuMemRelease(mine.handle));
	CHECK(used_bytes() == context_bytes);
	OK(cuMemAlloc(&mine.large, LARGE)); /* at addresses that were closed */
	fill(mine.large, LARGE, 5);
	CHECK(is_filled(mine.large, LARGE, 5));
}

int main(void)
{
	make_machine("h200");
	watch_memory = hold;
	CUcontext context = open_device();
	size_t context_bytes = used_bytes();
	allocate_in_every_way();
	every_object_is_one_mapping();
	fill_all(7);
	check_all(7, 1);
	goes_and_comes_back();
	check_all(0, 0); /* nothing of what was there */
	an_unmapped_object_keeps_its_bytes();
	what_is_mapped_when_it_is_freed_is_lost_too();
	what_is_not_there_is_refused();
	all_is_freed_in_the_end(context_bytes);
	OK(cuCtxDestroy(context));
	CHECK(used_bytes() == 0);
	return 0;
}
