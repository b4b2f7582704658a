/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <fcntl.h>
#include <pthread.h>

static void *disable_scheduling_only(void *returned)
{
	struct rm_disable_channels p = compute_channels(true, 64);
	const struct seen *s = subdevice();
	p.only_scheduling = 1;
	control(s->fd, s->client, s->handle, RM_DISABLE_CHANNELS, &p, sizeof p);
	*(volatile int *)returned = 1;
	return NULL;
}

static void the_trap_never_comes_back(void *unused)
{
	(void)unused;
	static volatile int returned;
	pthread_t thread;
	memset(&watch, 0, sizeof watch);
	open_device();
	CHECK(pthread_create(&thread, NULL, disable_scheduling_only, (void *)&returned) == 0);
	usleep(200000);
	CHECK(!returned);
}

static void refused(void *unused)
{
	(void)unused;
	setenv("HAMI_SIM_FAULTS", "rm_2080110b=0x1b:after=1:times=1;rm_a06c0103=0:after=1:delay_us=20000", 1);
	memset(&watch, 0, sizeof watch);
	open_device();
	CHECK(set_disabled(true) == RM_OK);
	CHECK(set_disabled(false) == RM_INSUFFICIENT_PERMISSIONS);
	spin(spin_function(), NULL, MS);
	usleep(20000);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL)); /* still paused: it was refused */
	CHECK(set_disabled(false) == RM_OK);
	uint64_t start = now_ns();
	CHECK(set_timeslice(1000) == RM_OK);
	CHECK(now_ns() - start >= 20 * MS);
	CHECK(set_timeslice(0) == RM_INVALID_ARGUMENT);
}

int main(void)
{
	char path[128];
	make_machine("h200");
	CHECK(child_status(start_child(the_trap_never_comes_back, NULL)) == 0);
	CHECK(child_status(start_child(refused, NULL)) == 0);
	open_device();
	const struct seen *s = subdevice();
	struct rm_disable_channels p = compute_channels(true, 64);
	/* Through another descriptor the client is not known. */
	snprintf(path, sizeof path, "%s/nvidiactl", machine_dir);
	int other = open(path, O_RDWR);
	CHECK(other >= 0);
	CHECK(control(other, s->client, s->handle, RM_DISABLE_CHANNELS, &p, sizeof p) == RM_INVALID_CLIENT);
	CHECK(control(s->fd, s->client, watch.compute_group, RM_DISABLE_CHANNELS, &p, sizeof p) ==
	      RM_INVALID_ARGUMENT);
	CHECK(control(s->fd, s->client, s->handle, RM_DISABLE_CHANNELS, &p, 100) == RM_INVALID_ARGUMENT);
	CHECK(control(s->fd, s->client, 12345, RM_DISABLE_CHANNELS, &p, sizeof p) ==
	      RM_INVALID_OBJECT_HANDLE);
	CHECK(control(s->fd, s->client, s->handle, 0x12345678, &p, sizeof p) == RM_NOT_SUPPORTED);
	p.channels[3] = 99;
	CHECK(control(s->fd, s->client, s->handle, RM_DISABLE_CHANNELS, &p, sizeof p) ==
	      RM_INVALID_OBJECT_HANDLE);
	/* Not even one of them was disabled. */
	spin(spin_function(), NULL, MS);
	OK(cuStreamSynchronize(NULL));
	/* Other descriptors' calls go to the real kernel. */
	int available;
	int ends[2];
	CHECK(pipe(ends) == 0 && write(ends[1], "abc", 3) == 3);
	CHECK(ioctl(ends[0], FIONREAD, &available) == 0 && available == 3);
	return 0;
}
