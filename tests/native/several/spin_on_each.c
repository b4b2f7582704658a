/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin_on_each MS KERNEL_US...
 *
 * A thread for each device runs kernels of its own length (0: none) for MS milliseconds; prints for each device the
 * percentage of that time that they ran.
 */
#include <pthread.h>

#include "several.h"

static struct run {
	int device;
	double ms, share;
	uint64_t kernel_us;
} runs[MOST_DEVICES];

static void *run(void *argument)
{
	struct run *r = argument;
	OK(cuCtxSetCurrent(contexts[r->device]));
	r->share = spin(r->ms, r->kernel_us);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[MOST_DEVICES];
	open_all();
	CHECK(argc == 2 + device_count);
	for (int i = 0; i < device_count; i++) {
		runs[i] = (struct run){
			.device = i, .ms = atof(argv[1]), .kernel_us = strtoull(argv[2 + i], NULL, 10)};
		if (runs[i].kernel_us)
			CHECK(pthread_create(&threads[i], NULL, run, &runs[i]) == 0);
	}
	for (int i = 0; i < device_count; i++) {
		if (runs[i].kernel_us)
			CHECK(pthread_join(threads[i], NULL) == 0);
		printf("%.2f\n", runs[i].share);
	}
	return 0;
}
