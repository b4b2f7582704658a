// SPDX-License-Identifier: GPL-2.0-or-later
/* record_read_mig: the UUID of the job's MIG device, from a file that only its owner can write, and nothing else. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "record.h"

#define UUID "MIG-2b0c3f61-1d2e-5a4b-8c9d-0123456789ab"

static int dir;
static uid_t me;
static char uuid[RECORD_MIG_SIZE];

static bool reads(const char *text, mode_t mode)
{
	int fd;

	unlinkat(dir, HAMI_FILE_MIG, 0);
	fd = openat(dir, HAMI_FILE_MIG, O_WRONLY | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	CHECK(fchmod(fd, mode) == 0);
	CHECK(close(fd) == 0);
	return record_read_mig(dir, me, uuid);
}

static void only_a_uuid_is_read(void)
{
	CHECK(reads(UUID " live 42 1 1000 0 boot 7 19 0 1 -\n", 0644));
	CHECK_TEXT(uuid, UUID);
	CHECK(reads("MIG-GPU-1\n", 0644));
	CHECK(!reads("- begun 42 1 1000 0 boot -1 19 0 1 -\n", 0644));
	CHECK(!reads("GPU-2b0c3f61\n", 0644));
	CHECK(!reads("MIG-\n", 0644));
	CHECK(!reads("MIG-a,GPU-0\n", 0644));
	CHECK(!reads("MIG-a;rm\n", 0644));
	CHECK(!reads("MIG-0123456789012345678901234567890123456789012345\n", 0644)); /* no room for the NUL */
	CHECK(!reads("", 0644));
}

static void only_the_owners_file_is_read(void)
{
	CHECK(!reads(UUID, 0666));
	CHECK(!reads(UUID, 0664));
	CHECK(reads(UUID, 0644));
	CHECK(!record_read_mig(dir, me + 1, uuid));
	CHECK(unlinkat(dir, HAMI_FILE_MIG, 0) == 0);
	CHECK(!record_read_mig(dir, me, uuid));
	CHECK(symlinkat("elsewhere", dir, HAMI_FILE_MIG) == 0);
	CHECK(!record_read_mig(dir, me, uuid));
	CHECK(unlinkat(dir, HAMI_FILE_MIG, 0) == 0);
	CHECK(mkfifoat(dir, HAMI_FILE_MIG, 0644) == 0);
	CHECK(!record_read_mig(dir, me, uuid));
	CHECK(unlinkat(dir, HAMI_FILE_MIG, 0) == 0);
}

int main(void)
{
	char path[] = "/tmp/hami-mig-XXXXXX";

	me = getuid();
	CHECK(mkdtemp(path));
	dir = open(path, O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	only_a_uuid_is_read();
	only_the_owners_file_is_read();
	CHECK(rmdir(path) == 0);
	return 0;
}
