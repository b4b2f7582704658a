/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <fcntl.h>
#include <sys/stat.h>

#define RECORDS 4096u
#define SIMPLE_ENDS(r) ((r)->tag == RM_TAG_END)

struct record {
	struct rm_switch_record r;
	uint64_t beyond[2];
};

static struct {
	const volatile struct rm_events_header *header;
	const struct record *records;
	uint32_t get, header_memory, records_memory, buffer;
	uint32_t count;
	struct rm_switch_record seen[RECORDS];
} buffer;

static struct shared {
	int started, stop;
} * shared;

static uint32_t allocate(uint32_t *handle, uint32_t class_id, void *params, uint32_t size)
{
	const struct seen *s = subdevice();
	struct rm_alloc a = {.client = s->client,
			     .parent = s->client,
			     .object = *handle,
			     .class_id = class_id,
			     .params = (uint64_t)(uintptr_t)params,
			     .size = size};
	CHECK(forward(s->fd, RM_REQUEST(RM_NR_ALLOC, struct rm_alloc), &a) == 0);
	*handle = a.object;
	return a.status;
}

static uint32_t allocate_memory(uint32_t *handle, uint64_t bytes)
{
	struct rm_memory_params p = {.head = {.attributes = RM_ATTRIBUTE_CACHED,
					      .attributes2 = RM_ATTRIBUTE2_USER_READ_ONLY,
					      .size = bytes}};
	return allocate(handle, RM_CLASS_DEVICELESS_MEMORY, &p, sizeof p);
}

static uint32_t release(uint32_t handle)
{
	const struct seen *s = subdevice();
	struct rm_free f = {.client = s->client, .parent = s->client, .object = handle};
	CHECK(forward(s->fd, RM_REQUEST(RM_NR_FREE, struct rm_free), &f) == 0);
	return f.status;
}

/* A second description of the control file, as an interposer makes it from libcuda's. */
static int open_again(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", subdevice()->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static uint32_t map_request(uint32_t handle, size_t size, uint32_t flags, int fd)
{
	const struct seen *s = subdevice();
	struct rm_map m = {.client = s->client,
			   .device = s->client,
			   .memory = handle,
			   .length = size,
			   .flags = flags,
			   .fd = fd};
	CHECK(forward(s->fd, RM_REQUEST(RM_NR_MAP, struct rm_map), &m) == 0);
	return m.status;
}

static const void *map_memory(uint32_t handle, size_t size)
{
	int fd = open_again();
	CHECK(map_request(handle, size, RM_MAP_READ_ONLY, fd) == RM_OK);
	CHECK(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	close(fd);
	return p;
}

static uint32_t on_subdevice(uint32_t command, void *params, uint32_t size)
{
	const struct seen *s = subdevice();
	return control(s->fd, s->client, s->handle, command, params, size);
}

static uint32_t on_buffer(uint32_t command, void *params, uint32_t size)
{
	const struct seen *s = subdevice();
	return control(s->fd, s->client, buffer.buffer, command, params, size);
}

static void open_buffer(bool all_users, uint32_t records, uint32_t flags)
{
	memset(&buffer, 0, sizeof buffer);
	CHECK(allocate_memory(&buffer.header_memory, 4096) == RM_OK);
	CHECK(allocate_memory(&buffer.records_memory, records * sizeof(struct record)) == RM_OK);
	CHECK(buffer.header_memory && buffer.records_memory != buffer.header_memory);
	struct rm_event_buffer p = {.record_size = sizeof(struct record),
				    .record_count = records,
				    .subdevice = subdevice()->handle,
				    .header = buffer.header_memory,
				    .records = buffer.records_memory};
	CHECK(allocate(&buffer.buffer, RM_CLASS_EVENT_BUFFER, &p, sizeof p) == RM_OK);
	buffer.header = map_memory(buffer.header_memory, 4096);
	buffer.records = map_memory(buffer.records_memory, records * sizeof(struct record));
	struct rm_bind_switches b = {.buffer = buffer.buffer,
				     .record_size = sizeof(struct record),
				     .level_of_detail = RM_LEVEL_SIMPLE,
				     .all_users = all_users};
	CHECK(on_subdevice(RM_BIND_SWITCHES, &b, sizeof b) == RM_OK && b.reason == 0);
	struct rm_events_enable e = {.enable = 1, .flags = flags};
	CHECK(on_buffer(RM_EVENTS_ENABLE, &e, sizeof e) == RM_OK);
}

/* All events up to now, appended to buffer.seen. */
static void look(void)
{
	CHECK(on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_OK);
	for (; buffer.get != buffer.header->put; buffer.get = (buffer.get + 1) % RECORDS) {
		const struct rm_switch_record *r = &buffer.records[buffer.get].r;
		CHECK(buffer.count < RECORDS && r->type == RM_RECORD_SWITCH &&
		      r->sequence == (uint16_t)buffer.count);
		buffer.seen[buffer.count++] = *r;
	}
}

static uint64_t realtime_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What sim-state says of a process. */
static uint64_t of_process(pid_t pid, const char *key)
{
	char pattern[32], command[256];
	static char text[1 << 16];
	snprintf(pattern, sizeof pattern, "\"pid\": %d,", pid);
	snprintf(command, sizeof command, "%s/sim-state %s", getenv("SIM_BIN"), machine_dir);
	FILE *pipe = popen(command, "r");
	CHECK(pipe);
	text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
	CHECK(pclose(pipe) == 0);
	char *at = strstr(text, pattern);
	snprintf(pattern, sizeof pattern, "\"%s\": ", key);
	CHECK(at && (at = strstr(at, pattern)));
	return strtoull(at + strlen(pattern), NULL, 10);
}

/* The number of a process in events: its own in the first PID namespace, of which a container's knows nothing. */
static uint32_t number_of(pid_t pid)
{
	uint32_t number = (uint32_t)of_process(pid, "first_pid");
	struct stat st;
	CHECK(stat("/proc/self/ns/pid", &st) == 0);
	CHECK(st.st_ino != 0xeffffffcu || number == (uint32_t)pid);
	return number;
}

static void alone(void *unused)
{
	(void)unused;
	memset(&watch, 0, sizeof watch);
	open_device();
	size_t before = free_memory();
	open_buffer(false, RECORDS, RM_EVENTS_KEEP_NEWEST);
	CHECK(free_memory() == before); /* the host's memory */
	CUfunction f = spin_function();
	uint64_t start = realtime_ns();
	look();
	CHECK(buffer.count == 0);
	for (int i = 0; i < 3; i++) {
		spin(f, NULL, 20 * MS);
		OK(cuStreamSynchronize(NULL));
		usleep(1000);
	}
	look();
	/* It came to the engine once, and has stayed there. */
	CHECK(buffer.count == 1 && buffer.seen[0].tag == RM_TAG_START);
	CHECK(buffer.seen[0].pid == number_of(getpid()));
	CHECK(buffer.seen[0].timestamp_ns + MS > start && buffer.seen[0].timestamp_ns < realtime_ns() + MS);
	CHECK(on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_OK);
	/* A buffer bound now sees none of it. */
	open_buffer(false, RECORDS, RM_EVENTS_KEEP_NEWEST);
	spin(f, NULL, 5 * MS);
	OK(cuStreamSynchronize(NULL));
	look();
	CHECK(buffer.count == 0);
}

static void compete(void *uid)
{
	memset(&watch, 0, sizeof watch);
	CHECK(!uid || setuid(*(uid_t *)uid) == 0);
	open_device();
	CUfunction f = spin_function();
	while (!__atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE)) {
		spin(f, NULL, 10 * MS);
		OK(cuStreamSynchronize(NULL));
		__atomic_store_n(&shared->started, 1, __ATOMIC_RELEASE);
	}
}

static pid_t start_rival(uid_t *uid)
{
	shared->started = shared->stop = 0;
	pid_t pid = start_child(compete, uid);
	while (!__atomic_load_n(&shared->started, __ATOMIC_ACQUIRE))
		usleep(200);
	return pid;
}

static void end_rival(pid_t pid)
{
	__atomic_store_n(&shared->stop, 1, __ATOMIC_RELEASE);
	CHECK(child_status(pid) == 0);
}

/* Own time between START and END is the time that the work ran and what a switch takes of it. */
static void two_take_turns(void *unused)
{
	(void)unused;
	memset(&watch, 0, sizeof watch);
	open_device();
	CUfunction f = spin_function();
	pid_t rival = start_rival(NULL);
	open_buffer(false, RECORDS, RM_EVENTS_KEEP_NEWEST);
	for (int i = 0; i < 60; i++)
		spin(f, NULL, 2 * MS);
	for (CUresult state = CUDA_ERROR_NOT_READY; state == CUDA_ERROR_NOT_READY; usleep(3000)) {
		look();
		state = cuStreamQuery(NULL);
	}
	usleep(20000); /* until the rival has the engine again */
	look();
	uint32_t me = number_of(getpid()), them = number_of(rival);
	uint64_t own_ns = 0;
	int own = 0, rivals = 0;
	for (uint32_t i = 0; i < buffer.count; i++) {
		const struct rm_switch_record *r = &buffer.seen[i], *before = r - 1;
		CHECK(r->pid == me || r->pid == them);
		if (!i)
			continue;
		CHECK(SIMPLE_ENDS(r) != SIMPLE_ENDS(before) && r->timestamp_ns >= before->timestamp_ns);
		if (SIMPLE_ENDS(r)) {
			CHECK(r->pid == before->pid && r->context == before->context);
			own_ns += r->pid == me ? r->timestamp_ns - before->timestamp_ns : 0;
			own += r->pid == me;
			rivals += r->pid != me;
		} else {
			uint64_t gap = r->timestamp_ns - before->timestamp_ns;
			CHECK(r->pid != before->pid && (gap == 85000 || gap == 0));
		}
	}
	uint64_t busy = of_process(getpid(), "busy_ns");
	fprintf(stderr, "ran %.2f ms, on the engine %.2f ms in %d turns, the rival in %d\n",
		(double)busy * 1e-6, (double)own_ns * 1e-6, own, rivals);
	CHECK(busy == 120 * MS);
	CHECK(own >= 40 && rivals >= 10);
	CHECK(own_ns >= busy && own_ns <= busy + (uint64_t)own * 115000 + 40 * MS);
	end_rival(rival);
}

/* What a process sees of another user's: with all_users that somebody was there; root sees who. */
static void of_other_users(bool as_root, bool all_users)
{
	uid_t other = 65533, mine = 65534;
	memset(&watch, 0, sizeof watch);
	pid_t rival = start_rival(&other);
	uint32_t them = number_of(rival);
	CHECK(as_root || setuid(mine) == 0);
	open_device();
	open_buffer(all_users, RECORDS, RM_EVENTS_KEEP_NEWEST);
	spin(spin_function(), NULL, 20 * MS);
	OK(cuStreamSynchronize(NULL));
	look();
	int own = 0, hidden = 0, named = 0;
	for (uint32_t i = 0; i < buffer.count; i++) {
		own += buffer.seen[i].pid != RM_PID_HIDDEN && buffer.seen[i].pid != them;
		hidden += buffer.seen[i].pid == RM_PID_HIDDEN && buffer.seen[i].context == 0;
		named += buffer.seen[i].pid == them;
	}
	CHECK(own > 0);
	CHECK((hidden > 0) == (all_users && !as_root));
	CHECK((named > 0) == (all_users && as_root));
	end_rival(rival);
}

static void users(void *which)
{
	of_other_users(*(int *)which & 1, *(int *)which & 2);
}

static void a_full_buffer(void *unused)
{
	(void)unused;
	memset(&watch, 0, sizeof watch);
	open_device();
	pid_t rival = start_rival(NULL);
	CUfunction f = spin_function();
	open_buffer(false, 8, RM_EVENTS_KEEP_OLDEST);
	for (int i = 0; i < 20; i++)
		spin(f, NULL, 2 * MS);
	OK(cuStreamSynchronize(NULL));
	CHECK(on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_OK);
	CHECK(buffer.header->put == 7 && buffer.header->dropped > 0);
	CHECK(buffer.records[0].r.sequence == 0);
	struct rm_events_get get = {.records = 7};
	CHECK(on_buffer(RM_EVENTS_UPDATE_GET, &get, sizeof get) == RM_OK);
	CHECK(buffer.header->get == 7 && buffer.header->dropped == 0);
	get.records = 8;
	CHECK(on_buffer(RM_EVENTS_UPDATE_GET, &get, sizeof get) == RM_INVALID_ARGUMENT);
	end_rival(rival);
}

static void refusals(void)
{
	uint32_t memory = 0, other = 0;
	CHECK(allocate_memory(&memory, 4096) == RM_OK);
	CHECK(allocate_memory(&other, 0) == RM_INVALID_ARGUMENT);
	int fd = open_again();
	CHECK(map_request(memory, 4096, 0, fd) == RM_INVALID_ARGUMENT);
	CHECK(map_request(memory, 8192, RM_MAP_READ_ONLY, fd) == RM_INVALID_ARGUMENT);
	CHECK(map_request(memory + 1000, 4096, RM_MAP_READ_ONLY, fd) == RM_INVALID_OBJECT_HANDLE);
	CHECK(map_request(memory, 4096, RM_MAP_READ_ONLY, subdevice()->fd) == RM_INVALID_ARGUMENT);
	CHECK(map_request(memory, 4096, RM_MAP_READ_ONLY, 0) == RM_INVALID_ARGUMENT);
	close(fd);
	struct rm_event_buffer p = {.record_size = sizeof(struct record),
				    .record_count = 100,
				    .header = memory,
				    .records = memory};
	CHECK(allocate(&other, RM_CLASS_EVENT_BUFFER, &p, sizeof p) == RM_INVALID_ARGUMENT);
	p.record_count = 10;
	CHECK(allocate(&other, RM_CLASS_EVENT_BUFFER, &p, sizeof p) == RM_OK);
	struct rm_bind_switches b = {.buffer = memory, .record_size = sizeof(struct record)};
	CHECK(on_subdevice(RM_BIND_SWITCHES, &b, sizeof b) == RM_INVALID_ARGUMENT);
	b.buffer = other;
	CHECK(on_subdevice(RM_BIND_SWITCHES_V1, &b, RM_BIND_SWITCHES_V1_BYTES) == RM_OK);
	buffer.buffer = other;
	struct rm_events_enable e = {.enable = 1, .flags = 4};
	CHECK(on_buffer(RM_EVENTS_ENABLE, &e, sizeof e) == RM_INVALID_ARGUMENT);
	/* The buffer keeps its memory; a child has none of it. */
	CHECK(release(memory) == RM_OK && on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_OK);
	int copy = dup(subdevice()->fd);
	pid_t child = fork();
	if (!child) { /* libcuda has closed its descriptor there */
		CHECK(dup2(copy, subdevice()->fd) == subdevice()->fd);
		_exit(on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_INVALID_CLIENT ? 0 : 1);
	}
	CHECK(child_status(child) == 0);
	CHECK(release(other) == RM_OK && on_buffer(RM_EVENTS_FLUSH, NULL, 0) == RM_INVALID_OBJECT_HANDLE);
	/* With the client everything goes. */
	CHECK(allocate_memory(&memory, 4096) == RM_OK);
	CHECK(release(subdevice()->client) == RM_OK);
	CHECK(release(memory) == RM_INVALID_OBJECT_HANDLE);
}

int main(void)
{
	make_machine("h200");
	CHECK(chmod(machine_dir, 0755) == 0);
	shared = shared_memory(sizeof *shared);
	CHECK(child_status(start_child(alone, NULL)) == 0);
	CHECK(child_status(start_child(two_take_turns, NULL)) == 0);
	CHECK(child_status(start_child(a_full_buffer, NULL)) == 0);
	for (int which = 0; which < 4; which++) {
		if (geteuid() == 0)
			CHECK(child_status(start_child(users, &which)) == 0);
		else
			fprintf(stderr, "not root: what is seen of other users is not tried\n");
	}
	open_device();
	refusals();
	return 0;
}
