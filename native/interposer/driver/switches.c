/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/switches.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "driver/libc.h"
#include "rm_abi.h"

#define RECORDS 4096u
#define HEADER_BYTES 4096u
#define FIRST_PID_NAMESPACE 0xeffffffcu /* PROC_PID_INIT_INO of the kernel */

static struct {
	bool open;
	struct hami_target target;
	uint32_t header_memory, records_memory, buffer; /* handles */
	const struct rm_events_header *header;
	const struct rm_switch_record *records;
	uint32_t get; /* index of the next record to read */
	uint16_t sequence;
	bool read_before;
	/* By the GPU's clock: when another process, and this one, last came to the engine; 0: not seen. */
	int64_t other_came, own_came;
	int64_t own_stay; /* this process's last one, ns */
	struct {
		uint32_t count, of_short, of_thrash;
	} between;       /* the others' stays since then */
	int64_t flushed; /* when the last flush began */
	int64_t ahead;   /* of the GPU's clock, ns before hami_clock_shared() */
} switches;

static int request(unsigned long number, void *argument, const uint32_t *status)
{
	if (hami_real_ioctl()(switches.target.fd, number, argument))
		return errno == EBADF || errno == ENOTTY ? -ESTALE : -errno;
	return *status == RM_INVALID_CLIENT || *status == RM_INVALID_OBJECT_HANDLE ? -ESTALE
	       : *status                                                           ? -EPERM
										   : 0;
}

/* Allocates an object below the client; its handle is the driver's choice. */
static int allocate(uint32_t class_id, void *params, uint32_t size, uint32_t *handle)
{
	struct rm_alloc a = {.client = switches.target.client,
			     .parent = switches.target.client,
			     .class_id = class_id,
			     .params = (uint64_t)(uintptr_t)params,
			     .size = size};
	int rc = request(RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status);
	*handle = a.object;
	return rc;
}

static int control(uint32_t object, uint32_t command, void *params, uint32_t size)
{
	struct rm_control c = {.client = switches.target.client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	return request(RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c, &c.status);
}

static void release(uint32_t *handle)
{
	struct rm_free f = {
		.client = switches.target.client, .parent = switches.target.client, .object = *handle};
	if (*handle)
		hami_real_ioctl()(switches.target.fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f);
	*handle = 0;
}

/* Allocates memory that the driver writes and this process reads, and maps it. */
static int allocate_mapped(size_t bytes, uint32_t *handle, const void **out)
{
	struct rm_memory_params p = {.head = {.attributes = RM_ATTRIBUTE_CACHED,
					      .attributes2 = RM_ATTRIBUTE2_USER_READ_ONLY,
					      .size = bytes}};
	char path[32];
	int rc = allocate(RM_CLASS_DEVICELESS_MEMORY, &p, sizeof p, handle);
	if (rc)
		return rc;
	snprintf(path, sizeof path, "/proc/self/fd/%d", switches.target.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	struct rm_map m = {.client = switches.target.client,
			   .device = switches.target.client,
			   .memory = *handle,
			   .length = bytes,
			   .flags = RM_MAP_READ_ONLY,
			   .fd = fd};
	rc = request(RM_REQUEST(RM_NR_MAP, struct rm_map), &m, &m.status);
	void *map = rc ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (!rc && map == MAP_FAILED)
		rc = -errno;
	if (!rc)
		*out = map;
	close(fd);
	return rc;
}

static void forget(void)
{
	if (switches.header)
		munmap((void *)(uintptr_t)switches.header, HEADER_BYTES);
	if (switches.records)
		munmap((void *)(uintptr_t)switches.records, RECORDS * sizeof *switches.records);
	switches.header = NULL;
	switches.records = NULL;
	switches.open = false;
}

static void close_all(void)
{
	release(&switches.buffer);
	release(&switches.records_memory);
	release(&switches.header_memory);
	forget();
}

/* The driver writes process numbers of the first PID namespace. */
static bool knows_own_number(void)
{
	struct stat st;
	return stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PID_NAMESPACE;
}

int hami_switches_open(const struct hami_target *target)
{
	const void *header = NULL, *records = NULL;
	if (switches.open)
		close_all();
	if (!knows_own_number())
		return -ENOTSUP;
	switches.target = *target;
	int rc = allocate_mapped(HEADER_BYTES, &switches.header_memory, &header);
	switches.header = header;
	if (!rc)
		rc = allocate_mapped(RECORDS * sizeof *switches.records, &switches.records_memory, &records);
	switches.records = records;
	struct rm_event_buffer buffer = {.record_size = sizeof *switches.records,
					 .record_count = RECORDS,
					 .subdevice = target->subdevice,
					 .header = switches.header_memory,
					 .records = switches.records_memory};
	if (!rc)
		rc = allocate(RM_CLASS_EVENT_BUFFER, &buffer, sizeof buffer, &switches.buffer);
	struct rm_bind_switches bind = {.buffer = switches.buffer,
					.record_size = sizeof *switches.records,
					.level_of_detail = RM_LEVEL_SIMPLE,
					.all_users = 1};
	if (!rc)
		rc = control(target->subdevice, RM_BIND_SWITCHES, &bind, sizeof bind);
	struct rm_events_enable enable = {.enable = 1, .flags = RM_EVENTS_KEEP_NEWEST};
	if (!rc)
		rc = control(switches.buffer, RM_EVENTS_ENABLE, &enable, sizeof enable);
	if (rc) {
		close_all();
		return rc;
	}
	switches.open = true;
	switches.get = switches.header->put % RECORDS;
	switches.read_before = false;
	switches.flushed = hami_clock_shared();
	switches.ahead = switches.other_came = switches.own_came = 0;
	return 0;
}

/*
 * Corrects what is known of the GPU's clock. A record that was not there when the last flush began is younger
 * than that, and none is from the future.
 */
static void set_clock(int64_t oldest, int64_t youngest, int64_t now)
{
	if (switches.ahead > oldest - switches.flushed)
		switches.ahead = oldest - switches.flushed;
	if (switches.ahead < youngest - now)
		switches.ahead = youngest - now;
}

/* Another process came to the engine or left it. */
static void note_other(const struct rm_switch_record *r, const struct hami_lengths *lengths,
		       struct hami_stays *stays)
{
	int64_t at = (int64_t)r->timestamp_ns, came = switches.other_came;
	switches.other_came = r->tag == RM_TAG_START ? at : 0;
	if (r->tag == RM_TAG_START || !came)
		return;
	int64_t unused = hami_slice_unused(at - came, lengths->others_slice);
	stays->others += at - came;
	stays->worked += hami_slice_worked(at - came, lengths->others_longest);
	stays->unused += unused;
	stays->tiny += at - came < hami_slice_tiny(lengths->others_slice);
	switches.between.count++;
	switches.between.of_short += unused >= HAMI_SLICE_MUCH;
	switches.between.of_thrash += at - came < HAMI_STAY_NS_THRASH;
}

/* This process came to the engine or left it. */
static void note_own(const struct rm_switch_record *r, const struct hami_lengths *lengths,
		     struct hami_stays *stays)
{
	int64_t at = (int64_t)r->timestamp_ns, slice = lengths->own_slice;
	if (r->tag == RM_TAG_END) {
		switches.own_stay = switches.own_came ? at - switches.own_came : INT64_MAX;
		memset(&switches.between, 0, sizeof switches.between);
		return;
	}
	switches.own_came = at;
	stays->returns++;
	bool cut = switches.own_stay >= slice / 4 * 3 && switches.own_stay <= slice / 4 * 5 + HAMI_SAVE_NS;
	bool all_short = switches.between.of_short == switches.between.count;
	stays->met += cut && switches.between.of_short > 0;
	stays->pressed += cut && switches.between.of_short > 0 && all_short;
	stays->thrashed += !cut && switches.own_stay < HAMI_STAY_NS_THRASH &&
			   switches.between.of_thrash > 0 &&
			   switches.between.of_thrash == switches.between.count;
}

static long take_records(struct hami_switch *list, size_t most, uint32_t put,
			 const struct hami_lengths *lengths, struct hami_stays *stays)
{
	uint32_t me = (uint32_t)getpid();
	int64_t oldest = 0, youngest = 0;
	long count = 0;
	bool lost = false;
	for (; switches.get != put; switches.get = (switches.get + 1) % RECORDS) {
		const struct rm_switch_record *r = &switches.records[switches.get];
		lost = lost || (switches.read_before && (uint16_t)(switches.sequence + 1) != r->sequence);
		switches.sequence = r->sequence;
		switches.read_before = true;
		if (r->type != RM_RECORD_SWITCH || (r->tag != RM_TAG_START && r->tag != RM_TAG_END))
			continue;
		if (r->pid == RM_PID_DRIVER)
			continue;
		if (r->pid != me) {
			note_other(r, lengths, stays);
			continue;
		}
		note_own(r, lengths, stays);
		youngest = (int64_t)r->timestamp_ns;
		oldest = oldest ? oldest : youngest;
		if ((size_t)count == most) {
			lost = true;
			break;
		}
		list[count++] = (struct hami_switch){.at = youngest, .on = r->tag == RM_TAG_START};
	}
	if (oldest)
		set_clock(oldest, youngest, hami_clock_shared());
	for (long i = 0; i < count; i++)
		list[i].at -= switches.ahead;
	return lost ? -ENODATA : count;
}

long hami_switches_read(struct hami_switch *list, size_t most, const struct hami_lengths *lengths,
			struct hami_stays *stays)
{
	if (!switches.open)
		return -ESTALE;
	int64_t now = hami_clock_shared();
	int rc = control(switches.buffer, RM_EVENTS_FLUSH, NULL, 0);
	if (rc) {
		close_all();
		return rc;
	}
	uint32_t put = __atomic_load_n(&switches.header->put, __ATOMIC_ACQUIRE) % RECORDS;
	long count = take_records(list, most, put, lengths, stays);
	switches.flushed = now;
	return count;
}

void hami_switches_forked(void)
{
	if (!switches.open)
		return;
	/* The objects are the parent's client's; the maps are this process's own. */
	forget();
	switches.buffer = switches.records_memory = switches.header_memory = 0;
}
