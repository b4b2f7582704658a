/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asks_the_resource_manager COUNT UUID...: a program without libcuda, which asks the resource manager for memory and
 * channels on each GPU of the machine: COUNT of them are the job's, and the others give nothing.
 */
#include "../rm/client.h"

static bool gives_memory(uint32_t device)
{
	struct rm_memory p = {.size = 64 * MIB};
	uint32_t handle = make(device, 0, RM_CLASS_DEVICE_MEMORY, &p, sizeof p);
	return handle && unmake(handle) == 0;
}

static bool gives_channels(uint32_t device)
{
	struct rm_group p = {.engine = RM_ENGINE_COMPUTE};
	uint32_t handle = make(device, 0, RM_CLASS_GROUP, &p, sizeof p);
	return handle && unmake(handle) == 0;
}

/* Memory that goes with its device comes back to that GPU's slice: it fits again and again. */
static bool takes_memory_along(uint32_t instance)
{
	struct rm_memory p = {.size = 1536 * MIB};
	for (int i = 0; i < 4; i++) {
		uint32_t device = make(rm.client, 0, RM_CLASS_DEVICE, &instance, sizeof instance);
		if (!make(device, 0, RM_CLASS_DEVICE_MEMORY, &p, sizeof p))
			return false;
		CHECK(unmake(device) == 0);
	}
	return true;
}

int main(int argc, char **argv)
{
	int memory = 0, channels = 0, along = 0;
	CHECK(argc >= 3);
	open_client();
	for (uint32_t instance = 0; instance < (uint32_t)argc - 2; instance++) {
		uint32_t device = make(rm.client, 0, RM_CLASS_DEVICE, &instance, sizeof instance);
		CHECK(device);
		memory += gives_memory(device);
		channels += gives_channels(device);
		CHECK(unmake(device) == 0);
		along += takes_memory_along(instance);
	}
	CHECK(memory == atoi(argv[1]) && channels == atoi(argv[1]) && along == atoi(argv[1]));
	return 0;
}
