/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <pthread.h>

static struct {
	CUcontext context, other;
	CUfunction function;
	CUdeviceptr address;
	_Atomic int launched, copied;
} test;

enum { LAUNCHES = 1100 }; /* the queue has room for 1024 */

static void *launch(void *unused)
{
	OK(cuCtxSetCurrent(test.context));
	for (; test.launched < LAUNCHES; test.launched++)
		spin(test.function, NULL, 1000);
	return unused;
}

static void *copy(void *unused)
{
	unsigned value = 0;
	CUstream stream;
	OK(cuCtxSetCurrent(test.context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemcpyDtoHAsync(&value, test.address, sizeof value, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(value == 77);
	test.copied++;
	return unused;
}

static void start(pthread_t *thread, void *(*body)(void *))
{
	CHECK(pthread_create(thread, NULL, body, NULL) == 0);
}

/* Waits until the number stands still for 100 ms. */
static int settled(const _Atomic int *number)
{
	int before;
	do {
		before = *number;
		usleep(100000);
	} while (*number != before);
	return before;
}

/* A process is paused when the channels of all of its contexts are disabled. */
static void set_paused(bool paused, uint32_t other_group)
{
	uint32_t group = watch.compute_group;
	CHECK(set_disabled(paused) == RM_OK);
	watch.compute_group = other_group;
	CHECK(set_disabled(paused) == RM_OK);
	watch.compute_group = group;
}

int main(void)
{
	pthread_t launching, copying;
	unsigned value = 0;
	CUdeviceptr elsewhere;
	CUstream stream;
	make_machine("h200");
	test.other = open_device();
	uint32_t other_group = watch.compute_group;
	OK(cuMemAlloc(&elsewhere, 4));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test.context = open_device();
	test.function = spin_function();
	OK(cuMemAlloc(&test.address, 4));
	OK(cuMemsetD32(test.address, 77, 1));
	OK(cuCtxSynchronize());
	set_paused(true, other_group);
	start(&copying, copy);
	CHECK(pthread_join(copying, NULL) == 0); /* the queue has room: nobody waits */
	start(&launching, launch);
	CHECK(settled(&test.launched) < LAUNCHES);
	start(&copying, copy);
	CHECK(settled(&test.copied) == 1);
	OK(cuCtxSetCurrent(test.other)); /* whose own lock nobody has */
	OK(cuMemcpyDtoHAsync(&value, elsewhere, sizeof value, stream));
	set_paused(false, other_group);
	CHECK(pthread_join(launching, NULL) == 0 && pthread_join(copying, NULL) == 0);
	CHECK(test.launched == LAUNCHES && test.copied == 2);
	return 0;
}
