// SPDX-License-Identifier: GPL-2.0-or-later
/* standing_uuids: Slurm's numbers of devices become the UUIDs of static MIG instances, all of them or none. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "standing.h"

#define A "MIG-2b0c3f61-1d2e-5a4b-8c9d-0123456789ab"
#define B "MIG-3b0c3f61-1d2e-5a4b-8c9d-0123456789ab"
#define MAP "1 " A "\n2 " B "\n12 MIG-c\n"

static char uuids[256];

static void only_the_owners_file_is_read(void)
{
	char folder[] = "/tmp/hami-standing-XXXXXX", path[128], map[STANDING_MAP_SIZE];
	int fd;

	CHECK(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/mig-static", folder);
	CHECK(!standing_read(folder, getuid(), map));
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	CHECK(fd >= 0 && write(fd, MAP, sizeof(MAP) - 1) == (ssize_t)sizeof(MAP) - 1 &&
	      fchmod(fd, 0644) == 0);
	CHECK(standing_read(folder, getuid(), map));
	CHECK_TEXT(map, MAP);
	CHECK(!standing_read(folder, getuid() + 1, map));
	CHECK(fchmod(fd, 0664) == 0 && !standing_read(folder, getuid(), map));
	CHECK(close(fd) == 0 && unlink(path) == 0 && symlink("/etc/passwd", path) == 0);
	CHECK(!standing_read(folder, getuid(), map));
	CHECK(unlink(path) == 0 && mkfifo(path, 0644) == 0);
	CHECK(!standing_read(folder, getuid(), map));
	CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

int main(void)
{
	only_the_owners_file_is_read();
	CHECK(standing_uuids(MAP, "1", uuids, sizeof(uuids)));
	CHECK_TEXT(uuids, A);
	CHECK(standing_uuids(MAP, "2,1", uuids, sizeof(uuids)));
	CHECK_TEXT(uuids, B "," A);
	CHECK(standing_uuids(MAP, "12", uuids, sizeof(uuids)));
	CHECK_TEXT(uuids, "MIG-c");
	CHECK(!standing_uuids(MAP, "0", uuids, sizeof(uuids))); /* a whole GPU */
	CHECK(!standing_uuids(MAP, "1,0", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "1,", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "1-2", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "x", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "-1", uuids, sizeof(uuids)));
	CHECK(!standing_uuids("", "1", uuids, sizeof(uuids)));
	CHECK(!standing_uuids("1 MIG-a;rm\n", "1", uuids, sizeof(uuids)));
	CHECK(!standing_uuids("1 " A, "1", uuids, sizeof(uuids))); /* cut */
	CHECK(!standing_uuids("garbage\n1 GPU-a\n", "1", uuids, sizeof(uuids)));
	CHECK(!standing_uuids(MAP, "1,2", uuids, 60)); /* no room */
	CHECK(!standing_uuids(MAP, "99999999999999999999999", uuids, sizeof(uuids)));
	return 0;
}
