/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MICROSECONDS: what an MPS server and a client of it ask for, in one process: the server makes the group, the client has a
 * second handle of it, makes its channels below that, and puts them to work. Waits until the group has this timeslice by
 * the server's handle, and then whether no channel is paused for a while; with 0 instead, until all are paused.
 */
#include <time.h>

#include "client.h"

static uint64_t timeslice_us(uint32_t group)
{
	uint64_t us = 0;
	CHECK(!control(group, RM_GROUP_GET_TIMESLICE, &us, sizeof us));
	return us;
}

static uint32_t disabled(void)
{
	struct rm_sim_channels n;
	CHECK(!control(rm.subdevice, RM_SIM_CHANNELS, &n, sizeof n));
	return n.disabled;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	open_client();
	const uint32_t group = make_group(RM_ENGINE_COMPUTE), server = rm.client;
	CHECK(group);
	const int server_fd = rm.fd;
	open_client();
	struct rm_dup d = {
		.client = rm.client, .parent = rm.device, .client_from = server, .object_from = group};
	CHECK(!ask(RM_REQUEST(RM_NR_DUP, struct rm_dup), &d, &d.status) && d.object);
	const uint32_t channel = make(d.object, 0, 0xc86f, NULL, 0);
	CHECK(channel && make(d.object, 0, 0xc86f, NULL, 0));
	CHECK(!control(channel, RM_CHANNEL_SCHEDULE, NULL, 0));
	const uint64_t wanted = (uint64_t)atoi(argv[1]);
	int looks = 0;
	if (!wanted) {
		while (disabled() != 2 && looks++ < 5000)
			usleep(500);
		CHECK(disabled() == 2);
		return 0;
	}
	while (timeslice_us(d.object) != wanted && looks++ < 5000)
		usleep(1000);
	CHECK(timeslice_us(d.object) == wanted);
	for (int i = 0; i < 300; i++, usleep(1000))
		CHECK(disabled() == 0);
	const int own_fd = rm.fd;
	const uint32_t own = rm.client;
	rm.fd = server_fd, rm.client = server;
	CHECK(timeslice_us(group) == wanted);
	rm.fd = own_fd, rm.client = own;
	CHECK(!unmake(d.object));
	return 0;
}
