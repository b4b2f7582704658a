// SPDX-License-Identifier: GPL-2.0-or-later
/* record_read_job: every way in which a job's record may be wrong has its own answer, and none is taken for
 * right. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "record.h"

enum { JOB = 42, USER = 1000 };

static int dir;
static uid_t me;

static struct hami_limits good(void)
{
	struct hami_limits limits = {.magic = HAMI_LIMITS_MAGIC,
				     .abi_version = HAMI_ABI_VERSION,
				     .record_size = sizeof(struct hami_limits),
				     .job_id = JOB,
				     .step_id = HAMI_JOB_STEP_ID,
				     .uid = USER,
				     .mem_limit_bytes = 8ull << 30,
				     .gpu_total_bytes = 80ull << 30,
				     .cores_percent = 50};

	strcpy(limits.class_name, "std");
	strcpy(limits.gpu_uuid, "GPU-00000000-0000-0000-0000-000000000000");
	return limits;
}

static void put_as(const char *name, const void *data, size_t size, mode_t mode)
{
	int fd;

	unlinkat(dir, name, 0);
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK(write(fd, data, size) == (ssize_t)size);
	CHECK(fchmod(fd, mode) == 0);
	CHECK(close(fd) == 0);
}

static void put(const void *data, size_t size, mode_t mode)
{
	put_as(HAMI_FILE_JOB_LIMITS, data, size, mode);
}

static int read_back(void)
{
	struct hami_limits limits;

	return record_read_job(dir, me, JOB, USER, &limits);
}

static int read_changed(const struct hami_limits *limits)
{
	put(limits, sizeof(*limits), 0644);
	return read_back();
}

#define CHECK_FIELD(field, value, wanted)                                                                    \
	do {                                                                                                 \
		struct hami_limits changed_ = good();                                                        \
		changed_.field = (value);                                                                    \
		CHECK(read_changed(&changed_) == (int)(wanted));                                             \
	} while (0)

static void the_file_itself_is_checked(void)
{
	struct hami_limits limits = good();
	char longer[sizeof(limits) + 1] = {0};
	struct hami_limits got;

	CHECK(read_back() == -ENOENT);
	put(&limits, sizeof(limits), 0644);
	CHECK(read_back() == 0);
	CHECK(record_read_job(dir, me + 1, JOB, USER, &got) == RECORD_OWNER);
	put(&limits, sizeof(limits), 0664);
	CHECK(read_back() == RECORD_WRITABLE);
	put(&limits, sizeof(limits), 0646);
	CHECK(read_back() == RECORD_WRITABLE);
	put(&limits, sizeof(limits) - 1, 0644);
	CHECK(read_back() == RECORD_SIZE);
	memcpy(longer, &limits, sizeof(limits));
	put(longer, sizeof(longer), 0644);
	CHECK(read_back() == RECORD_SIZE);

	CHECK(renameat(dir, HAMI_FILE_JOB_LIMITS, dir, "elsewhere") == 0);
	CHECK(symlinkat("elsewhere", dir, HAMI_FILE_JOB_LIMITS) == 0);
	CHECK(read_back() == RECORD_NOT_A_FILE);
	CHECK(unlinkat(dir, HAMI_FILE_JOB_LIMITS, 0) == 0);
	CHECK(unlinkat(dir, "elsewhere", 0) == 0);
	CHECK(mkfifoat(dir, HAMI_FILE_JOB_LIMITS, 0644) == 0);
	CHECK(read_back() == RECORD_NOT_A_FILE); /* and does not wait for a writer */
	CHECK(unlinkat(dir, HAMI_FILE_JOB_LIMITS, 0) == 0);
	CHECK(mkdirat(dir, HAMI_FILE_JOB_LIMITS, 0755) == 0);
	CHECK(read_back() == RECORD_NOT_A_FILE);
	CHECK(unlinkat(dir, HAMI_FILE_JOB_LIMITS, AT_REMOVEDIR) == 0);
}

/* It goes into the step's environment. */
static void the_class_is_a_name(void)
{
	static const char *const good_names[] = {"b", "lc2", "a_class_of_15_b", "x__9"};
	static const char *const bad_names[] = {"", "Std", "2lc", "_a", "a b", "a-b", "a=b", "\xc3\xa9"};

	for (size_t i = 0; i < sizeof(good_names) / sizeof(good_names[0]); i++) {
		struct hami_limits limits = good();

		strcpy(limits.class_name, good_names[i]);
		CHECK(read_changed(&limits) == RECORD_OK);
	}
	for (size_t i = 0; i < sizeof(bad_names) / sizeof(bad_names[0]); i++) {
		struct hami_limits limits = good();

		strcpy(limits.class_name, bad_names[i]);
		CHECK(read_changed(&limits) == RECORD_VALUES);
	}
	struct hami_limits limits = good();
	memset(limits.class_name, 'x', sizeof(limits.class_name));
	CHECK(read_changed(&limits) == RECORD_VALUES);
}

static void the_contents_are_checked(void)
{
	struct hami_limits limits = good();

	CHECK_FIELD(magic, HAMI_USAGE_MAGIC, RECORD_MAGIC);
	CHECK_FIELD(abi_version, HAMI_ABI_VERSION + 1, RECORD_ABI);
	CHECK_FIELD(record_size, 4095, RECORD_SIZE);
	CHECK_FIELD(job_id, JOB + 1, RECORD_IDENTITY);
	CHECK_FIELD(step_id, 0, RECORD_IDENTITY);
	CHECK_FIELD(uid, 0, RECORD_IDENTITY);
	CHECK_FIELD(mem_limit_bytes, 0, RECORD_VALUES);
	CHECK_FIELD(cores_percent, 0, RECORD_VALUES);
	CHECK_FIELD(cores_percent, 101, RECORD_VALUES);
	CHECK_FIELD(class_priority, HAMI_CLASS_PRIORITY_MAX, RECORD_OK);
	CHECK_FIELD(class_priority, HAMI_CLASS_PRIORITY_MAX + 1, RECORD_VALUES);
	CHECK_FIELD(slice_us, HAMI_CLASS_SLICE_US_MAX, RECORD_OK);
	CHECK_FIELD(slice_us, HAMI_CLASS_SLICE_US_MAX + 1, RECORD_VALUES);
	CHECK_FIELD(policy, HAMI_POLICY_NONE + 1, RECORD_VALUES);
	CHECK_FIELD(mode, HAMI_MODE_MIG + 1, RECORD_VALUES);
	CHECK_FIELD(cores_percent, 100, RECORD_OK);
	CHECK_FIELD(policy, HAMI_POLICY_NONE, RECORD_OK);
	CHECK_FIELD(latency, 1, RECORD_OK);
	CHECK_FIELD(latency, 2, RECORD_VALUES);
	CHECK_FIELD(floor_percent, 99, RECORD_OK);
	CHECK_FIELD(floor_percent, 100, RECORD_VALUES);
	CHECK_FIELD(slice_count, 1, RECORD_OK);
	CHECK_FIELD(slice_count, RECORD_SLICES_MAX, RECORD_OK);
	CHECK_FIELD(slice_count, RECORD_SLICES_MAX + 1, RECORD_VALUES);
	CHECK_FIELD(slice_index, 1, RECORD_VALUES);
	CHECK_FIELD(sequence, 2, RECORD_OK);
	CHECK_FIELD(sequence, 1, RECORD_OK); /* root was killed while it changed it */
	the_class_is_a_name();
	memset(limits.gpu_uuid, 'x', sizeof(limits.gpu_uuid));
	CHECK(read_changed(&limits) == RECORD_VALUES);
	for (int fault = RECORD_OK; fault <= RECORD_UNSTABLE; fault++)
		CHECK(*record_fault((enum record_fault)fault));
}

/* A change that is under way is waited for; one that is not done in time is not mixed with the next. */
static void a_record_that_is_changed_all_the_time_is_not_read(void)
{
	struct hami_limits limits = good();
	pid_t writer;
	int fd;

	limits.sequence = 1;
	put(&limits, sizeof(limits), 0644);
	fd = openat(dir, HAMI_FILE_JOB_LIMITS, O_WRONLY);
	CHECK(fd >= 0 && (writer = fork()) >= 0);
	for (; writer == 0; limits.sequence += 2) {
		usleep(1000);
		if (pwrite(fd, &limits, sizeof(limits), 0) < 0)
			_exit(1);
	}
	CHECK(read_back() == RECORD_UNSTABLE);
	CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer && close(fd) == 0);
	CHECK(read_back() == RECORD_OK);
}

/* A later slice's record: of the same run as slice 0's, of its own number, and nobody else's. */
static void the_records_of_later_slices_agree_with_the_first(void)
{
	struct hami_limits first = good(), other = good(), got;

	CHECK(record_slice_count(&first) == 1); /* of an older hami_hpc, which wrote 0 */
	first.slice_count = other.slice_count = 2;
	other.slice_index = 1;
	CHECK(record_read_slice(dir, me, &first, 1, &got) == -ENOENT);
	put_as("job.1.limits", &other, sizeof(other), 0644);
	CHECK(record_read_slice(dir, me, &first, 1, &got) == 0 && got.slice_index == 1);
	CHECK(record_read_slice(dir, me + 1, &first, 1, &got) == RECORD_OWNER);
	put_as("job.1.limits", &first, sizeof(first), 0644); /* a copy of slice 0's */
	CHECK(record_read_slice(dir, me, &first, 1, &got) == RECORD_IDENTITY);
	put(&other, sizeof(other), 0644);
	CHECK(read_back() == RECORD_IDENTITY);
	for (int change = 0; change < 5; change++) {
		struct hami_limits wrong = other;

		wrong.created_unix_ns += change == 0;
		wrong.slice_count += change == 1;
		wrong.job_id += change == 2;
		wrong.uid += change == 3;
		wrong.mode += change == 4;
		put_as("job.1.limits", &wrong, sizeof(wrong), 0644);
		CHECK(record_read_slice(dir, me, &first, 1, &got) == RECORD_IDENTITY);
	}
	CHECK(unlinkat(dir, "job.1.limits", 0) == 0);
	put(&first, sizeof(first), 0644);
}

static void a_steps_record_is_written_whole_and_removed(void)
{
	struct hami_limits limits = good(), got;
	struct stat st;
	int fd;

	limits.step_id = 0xfffffffb;
	umask(0077); /* of slurmstepd: the tasks must be able to read it all the same */
	CHECK(record_write_step(dir, &limits) == 0);
	CHECK(record_write_step(dir, &limits) == 0); /* the same step after a requeue */
	fd = openat(dir, "step-4294967291.limits", O_RDONLY);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &st) == 0);
	CHECK((st.st_mode & 07777) == 0644);
	CHECK(read(fd, &got, sizeof(got)) == (ssize_t)sizeof(got));
	CHECK(memcmp(&got, &limits, sizeof(got)) == 0);
	close(fd);
	limits.slice_count = 2;
	limits.slice_index = 1;
	CHECK(record_write_step(dir, &limits) == 0);
	CHECK(record_remove_step(dir, limits.step_id, 0) == 0);
	CHECK(record_remove_step(dir, limits.step_id, 0) == 0);
	CHECK(openat(dir, "step-4294967291.limits", O_RDONLY) < 0 && errno == ENOENT);
	CHECK(faccessat(dir, "step-4294967291.1.limits", R_OK, 0) == 0);
	CHECK(record_remove_step(dir, limits.step_id, 1) == 0);
	CHECK(faccessat(dir, "step-4294967291.1.limits", R_OK, 0) < 0);
	CHECK(record_write_file(dir, "no/such", "", 0) == -ENOENT);
}

/* When the first step was: that of a later one changes nothing, and a full disk or a link in its place neither. */
static void the_first_steps_time_is_written_once(void)
{
	char line[32] = "";
	struct stat st;
	int fd, none = openat(dir, "/nonexistent", O_RDONLY);

	CHECK(symlinkat("/nonexistent", dir, HAMI_FILE_FIRST_STEP) == 0);
	record_note_first_step(dir, 5);
	CHECK(access("/nonexistent", F_OK) < 0);
	CHECK(unlinkat(dir, HAMI_FILE_FIRST_STEP, 0) == 0);
	record_note_first_step(none, 6);
	record_note_first_step(dir, 1795354106123456789u);
	record_note_first_step(dir, 1795354106999999999u);
	fd = openat(dir, HAMI_FILE_FIRST_STEP, O_RDONLY);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0644);
	CHECK(read(fd, line, sizeof(line) - 1) == 20 && !strcmp(line, "1795354106123456789\n"));
	close(fd);
	CHECK(unlinkat(dir, HAMI_FILE_FIRST_STEP, 0) == 0);
}

/* The prolog's word on why no step may start: its first line, and only from a file of root's. */
static void the_prologs_refusal_is_read(void)
{
	const char reason[] = "job 42 has 2 GPUs\nand more";
	char text[64];
	int fd;

	CHECK(!record_read_refusal(dir, me, text, sizeof(text)));
	fd = openat(dir, HAMI_FILE_REFUSED, O_WRONLY | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK(!record_read_refusal(dir, me, text, sizeof(text))); /* still empty */
	CHECK(write(fd, reason, sizeof(reason) - 1) == (ssize_t)sizeof(reason) - 1);
	CHECK(record_read_refusal(dir, me, text, sizeof(text)) && !strcmp(text, "job 42 has 2 GPUs"));
	CHECK(record_read_refusal(dir, me, text, 7) && !strcmp(text, "job 42"));
	CHECK(!record_read_refusal(dir, me + 1, text, sizeof(text)));
	CHECK(fchmod(fd, 0666) == 0);
	CHECK(!record_read_refusal(dir, me, text, sizeof(text)));
	CHECK(close(fd) == 0);
	CHECK(unlinkat(dir, HAMI_FILE_REFUSED, 0) == 0);
	CHECK(symlinkat("/etc/hostname", dir, HAMI_FILE_REFUSED) == 0);
	CHECK(!record_read_refusal(dir, me, text, sizeof(text)));
	CHECK(unlinkat(dir, HAMI_FILE_REFUSED, 0) == 0);
}

/* Root's file of a job beside the pipe directory of its MPS daemon: it names a partition of the job's own GPU, or none. */
static void a_partition_is_read_from_roots_file_of_the_job(void)
{
	static const struct {
		const char *line;
		bool is_partition;
	} cases[] = {
		{"GPU-1/D/79e+/gw==\n", true}, {"GPU-2/D\n", false}, {"GPU-1\n", false},
		{"GPU-11/D\n", false},         {"", false},
	};
	struct hami_limits limits = {
		.job_id = 42, .created_unix_ns = 1795354106123456789u, .gpu_uuid = "GPU-1"};
	char pipe[] = "/tmp/partition-XXXXXX", jobs[64], path[128], text[RECORD_PARTITION_SIZE];

	CHECK(mkdtemp(pipe) != NULL);
	snprintf(jobs, sizeof(jobs), "%s.jobs", pipe);
	CHECK(mkdir(jobs, 0700) == 0);
	snprintf(path, sizeof(path), "%s/partition-42-1795354106123456789", jobs);
	CHECK(!record_read_partition(pipe, me, &limits, text, sizeof(text)));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		CHECK(fd >= 0 && write(fd, cases[i].line, strlen(cases[i].line)) >= 0 && close(fd) == 0);
		CHECK(record_read_partition(pipe, me, &limits, text, sizeof(text)) == cases[i].is_partition);
		if (!cases[i].is_partition)
			continue;
		CHECK_TEXT(text, "GPU-1/D/79e+/gw==");
		CHECK(!record_read_partition(pipe, me, &limits, text, 17)); /* no part of a name */
		CHECK(!record_read_partition(pipe, me + 1, &limits, text, sizeof(text)));
		limits.created_unix_ns++; /* of another run of the job */
		CHECK(!record_read_partition(pipe, me, &limits, text, sizeof(text)));
		limits.created_unix_ns--;
		CHECK(chmod(path, 0606) == 0);
		CHECK(!record_read_partition(pipe, me, &limits, text, sizeof(text)));
		CHECK(chmod(path, 0600) == 0);
	}
	CHECK(unlink(path) == 0 && symlink("/etc/hostname", path) == 0);
	CHECK(!record_read_partition(pipe, me, &limits, text, sizeof(text)));
	CHECK(unlink(path) == 0 && rmdir(jobs) == 0 && rmdir(pipe) == 0);
}

/* Its word that the job holds whole GPUs is believed under the same conditions: it takes the fence away. */
static void the_prologs_word_on_whole_gpus_is_believed_only_from_root(void)
{
	int fd;

	CHECK(!record_is_whole(dir, me));
	fd = openat(dir, HAMI_FILE_WHOLE, O_WRONLY | O_CREAT | O_EXCL, 0644);
	CHECK(fd >= 0);
	CHECK(!record_is_whole(dir, me)); /* still empty */
	CHECK(write(fd, "all\n", 4) == 4);
	CHECK(record_is_whole(dir, me));
	CHECK(!record_is_whole(dir, me + 1));
	CHECK(fchmod(fd, 0664) == 0);
	CHECK(!record_is_whole(dir, me));
	CHECK(close(fd) == 0);
	CHECK(unlinkat(dir, HAMI_FILE_WHOLE, 0) == 0);
	CHECK(symlinkat("/etc/hostname", dir, HAMI_FILE_WHOLE) == 0);
	CHECK(!record_is_whole(dir, me));
	CHECK(unlinkat(dir, HAMI_FILE_WHOLE, 0) == 0);
	CHECK(mkfifoat(dir, HAMI_FILE_WHOLE, 0644) == 0);
	CHECK(!record_is_whole(dir, me));
	CHECK(unlinkat(dir, HAMI_FILE_WHOLE, 0) == 0);
}

int main(void)
{
	char root[] = "/tmp/hami-record-XXXXXX", path[PATH_MAX];

	me = geteuid();
	CHECK(mkdtemp(root));
	snprintf(path, sizeof(path), "%s/jobs", root);
	CHECK(mkdir(path, 0755) == 0);
	CHECK(record_open_dir(root, JOB) == -ENOENT);
	snprintf(path, sizeof(path), "%s/jobs/%u", root, JOB);
	CHECK(mkdir(path, 0755) == 0);
	dir = record_open_dir(root, JOB);
	CHECK(dir >= 0);
	the_file_itself_is_checked();
	the_contents_are_checked();
	a_record_that_is_changed_all_the_time_is_not_read();
	the_records_of_later_slices_agree_with_the_first();
	a_steps_record_is_written_whole_and_removed();
	the_first_steps_time_is_written_once();
	the_prologs_refusal_is_read();
	a_partition_is_read_from_roots_file_of_the_job();
	the_prologs_word_on_whole_gpus_is_believed_only_from_root();
	CHECK(unlinkat(dir, HAMI_FILE_JOB_LIMITS, 0) == 0);
	/* Nothing is left over: no temporary file either. */
	CHECK(rmdir(path) == 0);
	snprintf(path, sizeof(path), "%s/jobs", root);
	CHECK(rmdir(path) == 0 && rmdir(root) == 0);
	return 0;
}
