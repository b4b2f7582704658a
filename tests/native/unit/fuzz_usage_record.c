/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usage record with any contents, changed by its user at any time, and every function that decodes it:
 * none crashes, each ends, what a program is told is consistent, and as long as nobody wrote into the record
 * the limits hold. Another process holds slot OTHER for as long as this one lives, so the lock's word can
 * also name somebody alive.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "arbitration/budget.h"
#include "check.h"
#include "region/budget.h"
#include "region/glance.h"

enum { OTHER = 5, MOST_STEPS = 64 };
#define LIMIT (1000ull << 20)
#define STEP_LIMIT (600ull << 20)

static struct hami_limits job = {.mem_limit_bytes = LIMIT, .cores_percent = 50};
static struct hami_limits step = {.mem_limit_bytes = STEP_LIMIT, .cores_percent = 20, .step_id = 3};
static struct hami_region region;

struct input {
	const uint8_t *data;
	size_t left;
};

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t take(struct input *in, size_t bytes)
{
	uint64_t value = 0;
	size_t n = bytes < in->left ? bytes : in->left;
	if (n)
		memcpy(&value, in->data, n);
	in->data += n;
	in->left -= n;
	return value;
}

static int open_again(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", region.file.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC); /* a description, and so locks, of its own */
	CHECK(fd >= 0);
	return fd;
}

static void lock_slot(int fd, short type, uint32_t slot)
{
	struct flock lock = {.l_type = type,
			     .l_whence = SEEK_SET,
			     .l_start = (off_t)(HAMI_SLOT_LOCK_BASE + slot),
			     .l_len = 1};
	CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int ends[2];
	char told;
	(void)argc, (void)argv;
	region = (struct hami_region){
		.job = &job, .step = &step, .slot = -1, .join = PTHREAD_MUTEX_INITIALIZER};
	int fd = memfd_create("usage", MFD_CLOEXEC);
	CHECK(fd >= 0 && ftruncate(fd, sizeof *region.usage) == 0);
	CHECK(hami_descriptor_adopt(&region.file, fd) == 0);
	region.usage =
		mmap(NULL, sizeof *region.usage, PROT_READ | PROT_WRITE, MAP_SHARED, region.file.fd, 0);
	CHECK(region.usage != MAP_FAILED && pipe(ends) == 0);
	pid_t parent = getpid(), pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		lock_slot(open_again(), F_WRLCK, OTHER);
		CHECK(write(ends[1], "x", 1) == 1);
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	CHECK(read(ends[0], &told, 1) == 1);
	return 0;
}

/* What a user might write: bytes anywhere, or a field that matters. */
static void scribble(struct input *in)
{
	struct hami_usage_file *u = region.usage;
	struct hami_usage_slot *own = &u->slots[region.slot >= 0 ? region.slot : 0];
	uint32_t own_name = (uint32_t)region.slot + 1;
	const uint32_t names[] = {
		0, OTHER + 1, own_name, UINT32_MAX, 0x80000000u, OTHER | 0x80000001u, (uint32_t)take(in, 4)};
	switch (take(in, 1) % 6) {
	case 0:
		u->head.lock = names[take(in, 1) % (sizeof names / sizeof *names)];
		break;
	case 1:
		own->step_row = (uint32_t)take(in, 4);
		break;
	case 2:
		own->used_bytes = take(in, 8);
		break;
	case 3:
		u->head.used_bytes = take(in, 8);
		break;
	case 4:
		memset(u->steps, (int)take(in, 1), sizeof u->steps); /* no row is free */
		break;
	default: {
		size_t at = take(in, 3) % sizeof *u, n = take(in, 1);
		for (size_t i = at; i < at + n && i < sizeof *u; i++)
			((uint8_t *)u)[i] = (uint8_t)take(in, 1);
	}
	}
}

static void look(void)
{
	struct hami_view view;
	hami_region_view(&region, &view);
	CHECK(view.limit == STEP_LIMIT && view.free <= view.limit && view.used == view.limit - view.free);
	(void)hami_region_step_processes(&region);
}

static void charge(uint64_t bytes, bool scribbled)
{
	int rc = hami_region_charge(&region, bytes);
	if (scribbled)
		return;
	CHECK(region.usage->head.used_bytes <= STEP_LIMIT);
	CHECK(region.usage->head.used_bytes == hami_region_own(&region));
	CHECK(rc == 0 || bytes > STEP_LIMIT - hami_region_own(&region)); /* what fits is not refused */
}

static int64_t clock_now;

static int64_t read_clock(void)
{
	return clock_now;
}

/* Whatever the record says, a process is paused for no longer than it may owe. */
static void spend(struct input *in)
{
	int64_t wait, used = (int64_t)take(in, 8);
	const struct hami_spent spent = {.since = (int64_t)take(in, 6),
					 .used = used,
					 .contended = used & 1,
					 .job_cap = job.cores_percent,
					 .step_cap = step.cores_percent,
					 .clock = read_clock};
	clock_now = (int64_t)take(in, 6);
	bool shut = hami_region_spend(&region, &spent, &wait);
	CHECK(wait >= 0);
	CHECK(!shut || wait <= HAMI_SHUT_NS_MOST);
}

static void begin_anew(void)
{
	if (region.slot >= 0)
		lock_slot(region.file.fd, F_UNLCK, (uint32_t)region.slot);
	region.slot = -1;
	memset(region.usage, 0, sizeof *region.usage);
	region.usage->head = (struct hami_usage){.magic = HAMI_USAGE_MAGIC,
						 .abi_version = HAMI_ABI_VERSION,
						 .record_size = sizeof *region.usage,
						 .slot_count = HAMI_USAGE_SLOT_COUNT};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	bool scribbled = false;
	begin_anew();
	for (int n = 0; in.left && n < MOST_STEPS; n++) {
		switch (take(&in, 1) % 9) {
		case 0:
		case 1:
			charge(take(&in, 8), scribbled);
			break;
		case 2:
			charge(take(&in, 4), scribbled);
			break;
		case 3:
			hami_region_release(&region, take(&in, 4));
			break;
		case 4:
			look();
			break;
		case 5:
			(void)hami_region_of_pid(&region, (uint32_t)take(&in, 4));
			(void)hami_region_of_pid(&region, (uint32_t)getpid());
			break;
		case 6:
			hami_region_add_time(&region, take(&in, 8), take(&in, 8));
			break;
		case 7:
			spend(&in);
			break;
		default:
			scribble(&in);
			scribbled = true;
		}
	}
	return 0;
}
