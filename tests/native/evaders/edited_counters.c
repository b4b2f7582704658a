/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary program in the interposer that takes memory until it is refused, writes zeros over what the job's usage
 * record says is in use, and takes more, until it has what it wants; then it keeps the zeros there. Its share of the
 * GPU's time stays what it was.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "../../../native/include/hami_contract.h"
#include "evader.h"

#define PIECE_MIB 64

/* The job's record: $HAMI_HPC_LIMITS lies in its directory; the other path is that of preload = "ldso". */
static struct hami_usage_file *map_usage(void)
{
	char path[4096] = HAMI_FILE_SELF "/" HAMI_FILE_USAGE;
	const char *limits = getenv(HAMI_ENV_LIMITS);
	if (access(path, F_OK) != 0 && limits && strrchr(limits, '/'))
		snprintf(path, sizeof path, "%.*s/" HAMI_FILE_USAGE, (int)(strrchr(limits, '/') - limits),
			 limits);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	void *map = mmap(NULL, sizeof(struct hami_usage_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	close(fd);
	return map;
}

static void forget(struct hami_usage_file *usage)
{
	usage->head.used_bytes = 0;
	for (uint32_t i = 0; i < HAMI_USAGE_STEP_COUNT; i++)
		usage->steps[i].used_bytes = 0;
	for (uint32_t i = 0; i < HAMI_USAGE_SLOT_COUNT; i++)
		usage->slots[i].used_bytes = 0;
}

int main(int argc, char **argv)
{
	const struct driver d = LINKED_DRIVER;
	struct hami_usage_file *usage = map_usage();
	CUfunction kernel = start(&d);
	CUdeviceptr address;
	for (size_t have = 0; have < mib_of(argc, argv); have += PIECE_MIB)
		if (d.cuMemAlloc_v2(&address, PIECE_MIB * MIB) != CUDA_SUCCESS) {
			forget(usage);
			OK(d.cuMemAlloc_v2(&address, PIECE_MIB * MIB));
		}
	say(mib_of(argc, argv));
	for (double end = now_s() + seconds_of(argc, argv); now_s() < end;) {
		forget(usage);
		spin(&d, kernel, 0.05, percent_of(argc, argv));
	}
	return 0;
}
