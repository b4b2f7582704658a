/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GROUPS CHANNELS OTHERS: a program that never loads libcuda makes so many groups of so many channels each,
 * and other objects before them, puts the groups to work, and waits until all channels are paused at once;
 * then until none is. Under a burst policy instead (argument 4: that many us) until all groups have this timeslice.
 */
#include <time.h>

#include "client.h"

static struct rm_sim_channels now(void)
{
	struct rm_sim_channels n;
	CHECK(!control(rm.subdevice, RM_SIM_CHANNELS, &n, sizeof n));
	return n;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool seen_disabled(uint32_t wanted)
{
	for (double end = seconds() + 1.8; seconds() < end; usleep(500))
		if (now().disabled == wanted)
			return true;
	fprintf(stderr, "%u of %u channels are paused\n", now().disabled, now().channels);
	return false;
}

static bool seen_timeslice(uint32_t wanted_us)
{
	for (double end = seconds() + 5; seconds() < end; usleep(500)) {
		struct rm_sim_channels n = now();
		if (n.least_timeslice_us == wanted_us && n.most_timeslice_us == wanted_us)
			return true;
	}
	fprintf(stderr, "timeslices from %u to %u us\n", now().least_timeslice_us, now().most_timeslice_us);
	return false;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 4);
	int groups = atoi(argv[1]), channels = atoi(argv[2]), others = atoi(argv[3]);
	open_client();
	for (int i = 0; i < others; i++)
		CHECK(make(rm.device, 0, RM_CLASS_SUBDEVICE, NULL, 0));
	uint32_t copies = make_group(RM_ENGINE_COPY);
	CHECK(copies && make(copies, 0, 0xc86f, NULL, 0));
	for (int g = 0; g < groups; g++) {
		uint32_t group = make_group(RM_ENGINE_COMPUTE), channel = 0;
		CHECK(group);
		for (int c = 0; c < channels; c++)
			CHECK((channel = make(group, 0, 0xc86f, NULL, 0)));
		CHECK(!control(group, RM_GROUP_SCHEDULE, NULL, 0));
	}
	CHECK(now().channels == (uint32_t)(groups * channels) && now().groups == (uint32_t)groups);
	if (argc > 4) {
		CHECK(seen_timeslice((uint32_t)atoi(argv[4])));
		return 0;
	}
	CHECK(seen_disabled((uint32_t)(groups * channels)));
	CHECK(seen_disabled(0));
	return 0;
}
