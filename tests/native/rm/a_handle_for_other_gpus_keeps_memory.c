/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In a slice of 1024 MiB: memory that was given a handle for other GPUs, in the form that the argument names, counts until
 * both handles are freed, in either order. A request that cannot be read is refused.
 */
#include "client.h"

#define PIECE (512 * MIB)

static uint32_t take(void)
{
	struct rm_memory p = {.size = PIECE};
	return make(rm.device, 0, RM_CLASS_DEVICE_MEMORY, &p, sizeof p);
}

static uint32_t reach(const char *form, uint32_t memory, uint32_t flags)
{
	struct rm_fabric p = {.alignment = 2 * MIB, .size = PIECE, .page_bytes = 2 * MIB, .memory = memory};
	struct rm_alloc a = {.client = rm.client,
			     .parent = rm.device,
			     .class_id = RM_CLASS_FABRIC,
			     .params = (uint64_t)(uintptr_t)&p,
			     .flags = flags};
	struct rm_alloc_short s = {
		.client = a.client, .parent = a.parent, .class_id = a.class_id, .params = a.params};
	if (strcmp(form, "short") == 0)
		return ask(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc_short), &s, &s.status) ? 0 : s.object;
	const unsigned long request = RM_REQUEST(RM_NR_ALLOC, struct rm_alloc);
	uint32_t status = strcmp(form, "transfer") == 0 ? ask_inside(request, &a, &a.status)
							: ask(request, &a, &a.status);
	return status ? 0 : a.object;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	open_client();
	for (int memory_first = 0; memory_first < 2; memory_first++) {
		uint32_t memory = take(), other = take();
		CHECK(memory && other && !take());
		uint32_t handle = reach(argv[1], memory, 0);
		CHECK(handle);
		CHECK(unmake(memory_first ? memory : handle) == RM_OK);
		CHECK(!take());
		CHECK(unmake(memory_first ? handle : memory) == RM_OK);
		CHECK((memory = take()));
		CHECK(!reach(argv[1], 0x12345, 0)); /* of what is not there */
		CHECK(unmake(memory) == RM_OK && unmake(other) == RM_OK);
	}
	CHECK(!reach("long", take(), RM_ALLOC_SERIALIZED));
	return 0;
}
