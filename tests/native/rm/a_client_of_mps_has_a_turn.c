/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GROUPS PAUSED [FILE]: a program with so many channels at work, each in a group of its own. Waits until all of them are
 * paused and open again, some times, where PAUSED is 1; else waits whether none ever is. With FILE, that of the clients of
 * an MPS server, it closes all descriptors of it first, and looks whether the lock of its entry is still held.
 */
#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "client.h"

static uint32_t disabled(void)
{
	struct rm_sim_channels n;
	CHECK(!control(rm.subdevice, RM_SIM_CHANNELS, &n, sizeof n));
	return n.disabled;
}

static void wait_for(uint32_t wanted)
{
	int looks = 0;
	while (disabled() != wanted && looks++ < 20000)
		usleep(500);
	CHECK(disabled() == wanted);
}

static void close_all(const char *path)
{
	struct stat file, st;
	CHECK(!stat(path, &file));
	for (int fd = 3; fd < 1024; fd++)
		if (!fstat(fd, &st) && st.st_ino == file.st_ino && st.st_dev == file.st_dev)
			CHECK(!close(fd));
}

static void check_lock(const char *path)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && !fcntl(fd, F_OFD_GETLK, &lock));
	CHECK(lock.l_type != F_UNLCK);
	close(fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3 || argc == 4);
	const uint32_t groups = (uint32_t)atoi(argv[1]);
	const bool is_paused = atoi(argv[2]);
	open_client();
	for (uint32_t i = 0; i < groups; i++) {
		const uint32_t group = make_group(RM_ENGINE_COMPUTE);
		const uint32_t channel = make(group, 0, 0xc86f, NULL, 0);
		CHECK(group && channel);
		CHECK(!control(channel, RM_CHANNEL_SCHEDULE, NULL, 0));
	}
	for (int i = 0; i < 3; i++) {
		if (!is_paused) {
			for (int j = 0; j < 200; j++, usleep(1000))
				CHECK(disabled() == 0 || i == 0);
			continue;
		}
		wait_for(groups);
		if (argc == 4)
			close_all(argv[3]);
		wait_for(0);
	}
	if (argc == 4)
		check_lock(argv[3]);
	return 0;
}
