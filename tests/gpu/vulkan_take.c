/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes device memory by Vulkan alone, in blocks of 64 MiB, until the driver refuses one or argv[1] MiB are
 * taken, then prints how much it has and how much is left after freeing half. Loads NVIDIA's Vulkan driver
 * without the Vulkan loader, and declares what it needs of Vulkan's ABI, so that it builds and runs where
 * neither is installed.
 *
 *   gcc vulkan_take.c -o vulkan_take -ldl && ./vulkan_take 12288
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_MIB = 64, MOST_BLOCKS = 4096, DEVICE_LOCAL = 1, API_1_1 = 1 << 22 | 1 << 12 };

/* Vulkan 1.1, vulkan_core.h; `type` is VkStructureType. */
struct application_info {
	int type;
	const void *next;
	const char *name;
	uint32_t version;
	const char *engine;
	uint32_t engine_version, api;
};
struct instance_info {
	int type;
	const void *next;
	uint32_t flags;
	const struct application_info *application;
	uint32_t layer_count;
	const char *const *layers;
	uint32_t extension_count;
	const char *const *extensions;
};
struct queue_info {
	int type;
	const void *next;
	uint32_t flags, family, count;
	const float *priorities;
};
struct device_info {
	int type;
	const void *next;
	uint32_t flags, queue_count;
	const struct queue_info *queues;
	uint32_t layer_count;
	const char *const *layers;
	uint32_t extension_count;
	const char *const *extensions;
	const void *features;
};
struct memory_info {
	int type;
	const void *next;
	uint64_t size;
	uint32_t memory_type;
};
struct memory_properties {
	uint32_t type_count;
	struct {
		uint32_t flags, heap;
	} types[32];
	uint32_t heap_count;
	struct {
		uint64_t size;
		uint32_t flags;
	} heaps[16];
};

typedef void (*function)(void);
typedef function (*get_function)(void *instance, const char *name);

static function need(get_function get, void *instance, const char *name)
{
	function found = get(instance, name);
	if (!found) {
		fprintf(stderr, "the Vulkan driver has no %s\n", name);
		exit(2);
	}
	return found;
}

static void check(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: VkResult %d\n", what, result);
		exit(2);
	}
}

static get_function load_driver(void)
{
	void *library = dlopen("libGLX_nvidia.so.0", RTLD_NOW);
	if (!library)
		library = dlopen("libEGL_nvidia.so.0", RTLD_NOW);
	get_function get = library ? (get_function)dlsym(library, "vk_icdGetInstanceProcAddr") : NULL;
	if (!get) {
		fprintf(stderr, "no Vulkan driver of NVIDIA's: %s\n", dlerror());
		exit(2);
	}
	int (*negotiate)(uint32_t *) =
		(int (*)(uint32_t *))dlsym(library, "vk_icdNegotiateLoaderICDInterfaceVersion");
	uint32_t version = 5;
	if (negotiate)
		check(negotiate(&version), "vk_icdNegotiateLoaderICDInterfaceVersion");
	return get;
}

int main(int argc, char **argv)
{
	long most = argc > 1 ? atol(argv[1]) / BLOCK_MIB : MOST_BLOCKS;
	get_function get = load_driver();
	struct application_info application = {.type = 0, .api = API_1_1};
	struct instance_info instance_info = {.type = 1, .application = &application};
	void *instance, *gpus[8], *device;
	uint32_t count = 8;
	check(((int (*)(const struct instance_info *, const void *, void **))need(
		      get, NULL, "vkCreateInstance"))(&instance_info, NULL, &instance),
	      "vkCreateInstance");
	check(((int (*)(void *, uint32_t *, void **))need(get, instance, "vkEnumeratePhysicalDevices"))(
		      instance, &count, gpus),
	      "vkEnumeratePhysicalDevices");
	struct memory_properties memory;
	((void (*)(void *, struct memory_properties *))need(
		get, instance, "vkGetPhysicalDeviceMemoryProperties"))(gpus[0], &memory);
	uint32_t local = 0;
	while (local < memory.type_count && !(memory.types[local].flags & DEVICE_LOCAL))
		local++;
	float priority = 1;
	struct queue_info queue = {.type = 2, .count = 1, .priorities = &priority};
	struct device_info device_info = {.type = 3, .queue_count = 1, .queues = &queue};
	check(((int (*)(void *, const struct device_info *, const void *, void **))need(
		      get, instance, "vkCreateDevice"))(gpus[0], &device_info, NULL, &device),
	      "vkCreateDevice");
	int (*allocate)(void *, const struct memory_info *, const void *, uint64_t *) =
		(int (*)(void *, const struct memory_info *, const void *, uint64_t *))need(
			get, instance, "vkAllocateMemory");
	void (*release)(void *, uint64_t, const void *) =
		(void (*)(void *, uint64_t, const void *))need(get, instance, "vkFreeMemory");
	static uint64_t blocks[MOST_BLOCKS];
	struct memory_info block = {.type = 5, .size = (uint64_t)BLOCK_MIB << 20, .memory_type = local};
	long taken = 0, again = 0;
	int result = 0;
	while (taken < most && taken < MOST_BLOCKS &&
	       !(result = allocate(device, &block, NULL, &blocks[taken])))
		taken++;
	for (long i = taken / 2; i < taken; i++)
		release(device, blocks[i], NULL);
	while (taken / 2 + again < taken && !allocate(device, &block, NULL, &blocks[taken / 2 + again]))
		again++;
	printf("took %ld MiB, VkResult %d; freed %ld, took %ld again\n", taken * BLOCK_MIB, result,
	       (taken - taken / 2) * BLOCK_MIB, again * BLOCK_MIB);
	return 0;
}
