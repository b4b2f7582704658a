/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <pthread.h>

static void *other_thread(void *context)
{
	CUcontext current;
	OK(cuCtxGetCurrent(&current));
	CHECK(!current); /* what is current is a thread's own */
	OK(cuCtxSetCurrent(context));
	CHECK(free_memory() > 0);
	return NULL;
}

static void the_stack(void)
{
	CUcontext a, b, current;
	CUdevice device;
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuCtxCreate(&b, NULL, 0, 1));
	OK(cuCtxGetDevice(&device));
	CHECK(device == 1);
	OK(cuCtxPopCurrent(&current));
	CHECK(current == b);
	OK(cuCtxGetCurrent(&current));
	CHECK(current == a);
	OK(cuCtxPushCurrent(b));
	OK(cuCtxDestroy(b));
	OK(cuCtxGetCurrent(&current));
	CHECK(current == a);
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent(b));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(b));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, other_thread, a) == 0);
	pthread_join(thread, NULL);
	OK(cuCtxDestroy(a));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

static void the_primary_context(void)
{
	CUcontext first, second;
	unsigned flags;
	int active;
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	OK(cuDevicePrimaryCtxRetain(&first, 0));
	OK(cuDevicePrimaryCtxRetain(&second, 0));
	CHECK(first == second);
	CHECK(state_number("used_bytes") == (long long)(512 * MIB));
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(state_number("used_bytes") == 0);
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxRetain(&first, 0));
	OK(cuDevicePrimaryCtxReset(0));
	CHECK(state_number("used_bytes") == 0);
}

static void no_room_for_a_context(void)
{
	CUcontext context;
	CUdeviceptr p;
	OK(cuCtxCreate(&context, NULL, 0, 0));
	OK(cuMemAlloc(&p, free_memory() - 100 * MIB));
	CUcontext refused;
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&refused, NULL, 0, 0));
	OK(cuCtxDestroy(context));
}

static void only_visible_devices_count(void *list)
{
	int count;
	char name[64], bus[32];
	OK(setenv("CUDA_VISIBLE_DEVICES", list, 1) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == 1);
	OK(cuDeviceGetName(name, sizeof name, 0));
	CHECK(strcmp(name, "NVIDIA A100-SXM4-40GB") == 0);
	OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
	CHECK(strcmp(bus, "0000:11:00.0") == 0);
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, sizeof name, 1));
}

static void no_device_is_visible(void *unused)
{
	(void)unused;
	setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
	GIVES(CUDA_ERROR_NO_DEVICE, cuInit(0));
}

int main(void)
{
	make_machine("h200 a100-40");
	CHECK(child_status(start_child(only_visible_devices_count, "1")) == 0);
	CHECK(child_status(start_child(no_device_is_visible, NULL)) == 0);
	OK(cuInit(0));
	the_stack();
	the_primary_context();
	no_room_for_a_context();
	return 0;
}
