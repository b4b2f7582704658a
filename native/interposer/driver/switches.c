/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/switches.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

static struct switches {
	bool open;
	struct hami_target target;
	uint32_t me;                         /* this process's number in the records; 0: not known yet */
	uint32_t fellows[HAMI_FELLOWS_MOST]; /* whose switches are this process's own */
	size_t fellow_count;
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
	} between;          /* the others' stays since then */
	uint32_t other_pid; /* who came last; 0: another user's */
	int64_t other_stay; /* the last one of them, ns */
	int64_t usual;      /* the longest lately of one that came amid own work and was the only one, ns */
	int64_t flushed;    /* when the last flush began */
	int64_t ahead;      /* of the GPU's clock, ns before hami_clock_shared() */
} all[HAMI_SLICES];

static int request(const struct switches *s, unsigned long number, void *argument, const uint32_t *status)
{
	if (hami_real_ioctl()(s->target.fd, number, argument))
		return errno == EBADF || errno == ENOTTY ? -ESTALE : -errno;
	return *status == RM_INVALID_CLIENT || *status == RM_INVALID_OBJECT_HANDLE ? -ESTALE
	       : *status                                                           ? -EPERM
										   : 0;
}

/* Allocates an object below the client; its handle is the driver's choice. */
static int allocate(const struct switches *s, uint32_t class_id, void *params, uint32_t size,
		    uint32_t *handle)
{
	struct rm_alloc a = {.client = s->target.client,
			     .parent = s->target.client,
			     .class_id = class_id,
			     .params = (uint64_t)(uintptr_t)params,
			     .size = size};
	int rc = request(s, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a, &a.status);
	*handle = a.object;
	return rc;
}

static int control(const struct switches *s, uint32_t object, uint32_t command, void *params, uint32_t size)
{
	struct rm_control c = {.client = s->target.client,
			       .object = object,
			       .command = command,
			       .params = (uint64_t)(uintptr_t)params,
			       .size = size};
	return request(s, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c, &c.status);
}

static void release(const struct switches *s, uint32_t *handle)
{
	struct rm_free f = {.client = s->target.client, .parent = s->target.client, .object = *handle};
	if (*handle)
		hami_real_ioctl()(s->target.fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f);
	*handle = 0;
}

/* Allocates memory that the driver writes and this process reads, and maps it. */
static int allocate_mapped(const struct switches *s, size_t bytes, uint32_t *handle, const void **out)
{
	struct rm_memory_params p = {.head = {.attributes = RM_ATTRIBUTE_CACHED,
					      .attributes2 = RM_ATTRIBUTE2_USER_READ_ONLY,
					      .size = bytes}};
	char path[32];
	int rc = allocate(s, RM_CLASS_DEVICELESS_MEMORY, &p, sizeof p, handle);
	if (rc)
		return rc;
	snprintf(path, sizeof path, "/proc/self/fd/%d", s->target.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	struct rm_map m = {.client = s->target.client,
			   .device = s->target.client,
			   .memory = *handle,
			   .length = bytes,
			   .flags = RM_MAP_READ_ONLY,
			   .fd = fd};
	rc = request(s, RM_REQUEST(RM_NR_MAP, struct rm_map), &m, &m.status);
	void *map = rc ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (!rc && map == MAP_FAILED)
		rc = -errno;
	if (!rc)
		*out = map;
	close(fd);
	return rc;
}

static void forget(struct switches *s)
{
	if (s->header)
		munmap((void *)(uintptr_t)s->header, HEADER_BYTES);
	if (s->records)
		munmap((void *)(uintptr_t)s->records, RECORDS * sizeof *s->records);
	s->header = NULL;
	s->records = NULL;
	s->open = false;
}

static void close_all(struct switches *s)
{
	release(s, &s->buffer);
	release(s, &s->records_memory);
	release(s, &s->header_memory);
	forget(s);
}

/* The driver writes process numbers of the first PID namespace; 0 in another one. */
static uint32_t number_if_known(void)
{
	struct stat st;
	bool first = stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PID_NAMESPACE;
	return first ? (uint32_t)getpid() : 0;
}

/* Asks for the id that the records of a channel of this process have; 0 where the driver does not tell it. */
static uint32_t id_of_channel(const struct hami_target *channel)
{
	const struct switches via = {.target = *channel};
	uint32_t id = 0;
	return control(&via, channel->object, RM_CHANNEL_CONTEXT_ID, &id, sizeof id) ? 0 : id;
}

/* Returns the process number in a record, not yet read, of this channel; 0 when there is none. */
static uint32_t number_in_records(const struct switches *s, uint32_t channel_id, uint32_t put)
{
	for (uint32_t i = s->get; channel_id && i != put; i = (i + 1) % RECORDS) {
		const struct rm_switch_record *r = &s->records[i];
		if (r->type == RM_RECORD_SWITCH && r->context == channel_id && r->pid != RM_PID_HIDDEN &&
		    r->pid != RM_PID_DRIVER)
			return r->pid;
	}
	return 0;
}

/* In another PID namespace: the first record of one of this process's channels tells its number. */
static void learn_own_number(struct switches *s, unsigned int slice, uint32_t put)
{
	long count;
	if (s->me || s->get == put)
		return;
	struct hami_target *channels = hami_objects_channels(slice, &count);
	for (long i = 0; i < count && !s->me; i++)
		s->me = number_in_records(s, id_of_channel(&channels[i]), put);
	free(channels);
}

int hami_switches_open(unsigned int slice, const struct hami_target *target)
{
	struct switches *s = &all[slice];
	const void *header = NULL, *records = NULL;
	if (s->open)
		close_all(s);
	uint32_t known = number_if_known();
	s->me = known ? known : s->me; /* what was learnt holds */
	if (!s->me && !id_of_channel(target))
		return -ENOTSUP;
	s->target = *target;
	int rc = allocate_mapped(s, HEADER_BYTES, &s->header_memory, &header);
	s->header = header;
	if (!rc)
		rc = allocate_mapped(s, RECORDS * sizeof *s->records, &s->records_memory, &records);
	s->records = records;
	struct rm_event_buffer buffer = {.record_size = sizeof *s->records,
					 .record_count = RECORDS,
					 .subdevice = target->subdevice,
					 .header = s->header_memory,
					 .records = s->records_memory};
	if (!rc)
		rc = allocate(s, RM_CLASS_EVENT_BUFFER, &buffer, sizeof buffer, &s->buffer);
	struct rm_bind_switches bind = {.buffer = s->buffer,
					.record_size = sizeof *s->records,
					.level_of_detail = RM_LEVEL_SIMPLE,
					.all_users = 1};
	if (!rc)
		rc = control(s, target->subdevice, RM_BIND_SWITCHES, &bind, sizeof bind);
	struct rm_events_enable enable = {.enable = 1, .flags = RM_EVENTS_KEEP_NEWEST};
	if (!rc)
		rc = control(s, s->buffer, RM_EVENTS_ENABLE, &enable, sizeof enable);
	if (rc) {
		close_all(s);
		return rc;
	}
	s->open = true;
	s->get = s->header->put % RECORDS;
	s->read_before = false;
	s->flushed = hami_clock_shared();
	s->ahead = s->other_came = s->own_came = 0;
	return 0;
}

/*
 * Corrects what is known of the GPU's clock. A record that was not there when the last flush began is younger
 * than that, and none is from the future.
 */
static void set_clock(struct switches *s, int64_t oldest, int64_t youngest, int64_t now)
{
	if (s->ahead > oldest - s->flushed)
		s->ahead = oldest - s->flushed;
	if (s->ahead < youngest - now)
		s->ahead = youngest - now;
}

/* Another process came to the engine or left it. */
static void note_other(struct switches *s, const struct rm_switch_record *r,
		       const struct hami_lengths *lengths, struct hami_stays *stays)
{
	int64_t at = (int64_t)r->timestamp_ns, came = s->other_came;
	s->other_came = r->tag == RM_TAG_START ? at : 0;
	s->other_pid = r->pid;
	if (r->tag == RM_TAG_START || !came)
		return;
	int64_t unused = hami_slice_unused(at - came, lengths->others_slice);
	s->other_stay = at - came;
	stays->others += at - came;
	stays->worked += hami_slice_worked(at - came, lengths->others_longest);
	stays->unused += unused;
	stays->got += hami_use_of_stay(at - came);
	stays->tiny += at - came < hami_slice_tiny(lengths->others_slice);
	s->between.count++;
	s->between.of_short += unused >= HAMI_SLICE_MUCH;
	s->between.of_thrash += at - came < HAMI_STAY_NS_THRASH;
}

/* This process came to the engine or left it. */
static void note_own(struct switches *s, const struct rm_switch_record *r, const struct hami_lengths *lengths,
		     struct hami_stays *stays)
{
	int64_t at = (int64_t)r->timestamp_ns, slice = lengths->own_slice;
	if (r->tag == RM_TAG_END) {
		s->own_stay = s->own_came ? at - s->own_came : INT64_MAX;
		memset(&s->between, 0, sizeof s->between);
		return;
	}
	s->own_came = at;
	stays->returns++;
	if (s->between.count == 1 && s->other_stay < HAMI_REQUEST_LONGEST)
		s->usual = s->other_stay > s->usual - s->usual / 8 ? s->other_stay : s->usual - s->usual / 8;
	bool cut = s->own_stay >= slice / 4 * 3 && s->own_stay <= slice / 4 * 5 + HAMI_SAVE_NS;
	bool all_short = s->between.of_short == s->between.count;
	stays->met += cut && s->between.of_short > 0;
	stays->pressed += cut && s->between.of_short > 0 && all_short;
	stays->thrashed += !cut && s->own_stay < HAMI_STAY_NS_THRASH && s->between.of_thrash > 0 &&
			   s->between.of_thrash == s->between.count;
}

static bool is_own(const struct switches *s, uint32_t pid)
{
	size_t i = 0;
	while (i < s->fellow_count && s->fellows[i] != pid)
		i++;
	return pid == s->me || (pid != RM_PID_HIDDEN && i < s->fellow_count);
}

static long take_records(struct switches *s, struct hami_switch *list, size_t most, uint32_t put,
			 const struct hami_lengths *lengths, struct hami_stays *stays)
{
	int64_t oldest = 0, youngest = 0;
	long count = 0;
	bool lost = false;
	for (; s->get != put; s->get = (s->get + 1) % RECORDS) {
		const struct rm_switch_record *r = &s->records[s->get];
		lost = lost || (s->read_before && (uint16_t)(s->sequence + 1) != r->sequence);
		s->sequence = r->sequence;
		s->read_before = true;
		if (r->type != RM_RECORD_SWITCH || (r->tag != RM_TAG_START && r->tag != RM_TAG_END))
			continue;
		if (r->pid == RM_PID_DRIVER)
			continue;
		if (!is_own(s, r->pid)) {
			note_other(s, r, lengths, stays);
			continue;
		}
		const bool is_start = r->tag == RM_TAG_START;
		note_own(s, r, lengths, stays);
		youngest = (int64_t)r->timestamp_ns;
		oldest = oldest ? oldest : youngest;
		if ((size_t)count == most) {
			lost = true;
			break;
		}
		list[count++] = (struct hami_switch){.at = youngest,
						     .on = is_start,
						     .after_others = is_start && s->between.count > 0,
						     .pid = s->other_pid};
	}
	if (oldest)
		set_clock(s, oldest, youngest, hami_clock_shared());
	for (long i = 0; i < count; i++)
		list[i].at -= s->ahead;
	return lost ? -ENODATA : count;
}

long hami_switches_read(unsigned int slice, struct hami_switch *list, size_t most,
			const struct hami_lengths *lengths, struct hami_stays *stays)
{
	struct switches *s = &all[slice];
	if (!s->open)
		return -ESTALE;
	int64_t now = hami_clock_shared();
	int rc = control(s, s->buffer, RM_EVENTS_FLUSH, NULL, 0);
	if (rc) {
		close_all(s);
		return rc;
	}
	uint32_t put = __atomic_load_n(&s->header->put, __ATOMIC_ACQUIRE) % RECORDS;
	learn_own_number(s, slice, put);
	long count = take_records(s, list, most, put, lengths, stays);
	s->flushed = now;
	return count;
}

struct hami_visit hami_switches_other(unsigned int slice, int64_t now, uint32_t *pid)
{
	const struct switches *s = &all[slice];
	const bool is_there = s->open && s->other_came;
	const int64_t stay = now - (s->other_came - s->ahead);
	*pid = is_there ? s->other_pid : 0;
	return (struct hami_visit){.stay = !is_there ? 0 : stay > 0 ? stay : 1, .usual = s->usual};
}

uint32_t hami_switches_own_pid(unsigned int slice)
{
	return all[slice].me;
}

void hami_switches_set_fellows(unsigned int slice, const uint32_t *pids, size_t count)
{
	struct switches *s = &all[slice];
	s->fellow_count = count < HAMI_FELLOWS_MOST ? count : HAMI_FELLOWS_MOST;
	memcpy(s->fellows, pids, s->fellow_count * sizeof *pids);
}

void hami_switches_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		struct switches *s = &all[i];
		s->me = 0;
		s->fellow_count = 0;
		if (!s->open)
			continue;
		/* The objects are the parent's client's; the maps are this process's own. */
		forget(s);
		s->buffer = s->records_memory = s->header_memory = 0;
	}
}
