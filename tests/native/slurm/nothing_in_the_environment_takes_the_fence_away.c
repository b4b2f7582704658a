// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * preload=ldso: a task that starts with no environment at all has the library, and finds its own step's
 * record at the fixed place. Runs in a mount namespace with an /etc and a /run of its own, so that the
 * machine's stay as they are. Needs root.
 *
 * The program is its own task (first argument "task"); the library is any shared object, which has to show up
 * in the task's maps.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ldso.h"
#include "record.h"

enum { JOB = 7 };

#define RUN "/run/elsewhere" /* run_dir may be any; what tasks see is at the fixed place */
#define MARK RUN "/libmark.so"

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	CHECK(close(fd) == 0);
}

static void get(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	CHECK(n >= 0);
	text[n] = '\0';
	close(fd);
}

/* In the task: argv[2] is the memory limit that its step's record must say. */
static int task(const char *limit)
{
	char line[4096], *found = NULL;
	FILE *maps = fopen("/proc/self/maps", "re");
	struct hami_limits limits;
	int fd = open(HAMI_FILE_SELF "/" HAMI_FILE_SELF_LIMITS, O_RDONLY);

	CHECK(maps);
	while (!found && fgets(line, sizeof(line), maps))
		found = strstr(line, "/libmark.so");
	CHECK(found);
	fclose(maps);
	CHECK(fd >= 0 && read(fd, &limits, sizeof(limits)) == (ssize_t)sizeof(limits));
	close(fd);
	if (strcmp(limit, "300") == 0) { /* the step with two slices */
		struct hami_limits other;

		fd = open(HAMI_FILE_SELF "/step.1.limits", O_RDONLY);
		CHECK(fd >= 0 && read(fd, &other, sizeof(other)) == (ssize_t)sizeof(other));
		CHECK(other.mem_limit_bytes == 301 && other.slice_index == 1);
		close(fd);
	}
	CHECK(limits.mem_limit_bytes == strtoull(limit, NULL, 10));
	CHECK(access(HAMI_FILE_SELF "/" HAMI_FILE_JOB_LIMITS, R_OK) == 0);
	get(HAMI_FILE_SELF "/shared/usage", line, sizeof(line)); /* on a mount of its own */
	CHECK_TEXT(line, "used");
	get("/etc/ld.so.preload", line, sizeof(line));
	CHECK_TEXT(line, MARK "\n# the site's own list\n");
	CHECK(umount("/etc/ld.so.preload") < 0 && errno == EPERM);
	return 0;
}

/* Where / is no mount point (a plain chroot), no task is let in, and what stands in the way is said. */
static void refused_where_root_is_no_mount(const struct options *opt)
{
	char error[PATH_MAX + 256] = "";
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(chroot(RUN) == 0 && chdir("/") == 0);
		CHECK(ldso_enter(opt, JOB, 0, 1, error, sizeof(error)) < 0);
		CHECK(strstr(error, "slurmd's root directory must be a mount point"));
		CHECK(strstr(error, "preload = \"env\""));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Where nobody may make mount namespaces (a container without CAP_SYS_ADMIN), no task is let in, and it is
 * said. */
static bool refused_without_rights(void)
{
	const struct options opt = {.run_dir = RUN, .interposer = MARK, .preload = PRELOAD_LDSO};
	char error[PATH_MAX + 256] = "";

	if (unshare(CLONE_NEWNS) == 0)
		return false;
	CHECK(errno == EPERM);
	CHECK(ldso_enter(&opt, JOB, 0, 1, error, sizeof(error)) < 0);
	CHECK(strstr(error, "its mount namespace cannot be made") && strstr(error, "CAP_SYS_ADMIN"));
	CHECK(strstr(error, "preload = \"env\""));
	return true;
}

/* A namespace in which nothing is shared. In a chroot whose / is no mount point, `at` with / bound there
 * becomes one. */
static void own_mounts(const char *at)
{
	CHECK(unshare(CLONE_NEWNS) == 0);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		return;
	CHECK(errno == EINVAL);
	CHECK(mount("/", at, NULL, MS_BIND | MS_REC, NULL) == 0);
	CHECK(chdir(at) == 0 && chroot(".") == 0);
	CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
}

static void own_etc_and_run(const char *library)
{
	char command[PATH_MAX + 64];

	CHECK(mount("none", "/run", "tmpfs", 0, "mode=755") == 0);
	CHECK(system("cp -a /etc /run/etc") == 0);
	CHECK(mount("/run/etc", "/etc", NULL, MS_BIND, NULL) == 0);
	unlink("/etc/ld.so.preload");
	CHECK(mkdir(RUN, 0755) == 0 && mkdir(RUN "/jobs", 0755) == 0 && mkdir(RUN "/jobs/7", 0755) == 0);
	put(RUN "/jobs/7/" HAMI_FILE_JOB_LIMITS, "");
	CHECK(mkdir(RUN "/jobs/7/shared", 0755) == 0);
	CHECK(mount("none", RUN "/jobs/7/shared", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") == 0);
	put(RUN "/jobs/7/shared/usage", "used");
	/* As systemd leaves a host: what a task mounts would show everywhere if it did not see to it. */
	CHECK(mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL) == 0);
	snprintf(command, sizeof(command), "cp '%s' " MARK " && chmod 755 " MARK, library);
	CHECK(system(command) == 0);
}

/* A task of the step: root's part, then the user without an environment. Returns its exit status. */
static int run_task(const struct options *opt, const char *program, uint32_t step_id, uint32_t slices,
		    const char *limit)
{
	char *argv[] = {(char *)program, (char *)"task", (char *)limit, NULL}, *env[] = {NULL};
	char error[PATH_MAX + 256] = "";
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		/* Opened as root: the checkout may lie where the user cannot reach it, below /root. */
		int executable = open(program, O_RDONLY | O_CLOEXEC);

		CHECK(executable >= 0);
		if (ldso_enter(opt, JOB, step_id, slices, error, sizeof(error)) < 0) {
			fprintf(stderr, "%s\n", error);
			_exit(2);
		}
		CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		fexecve(executable, argv, env);
		_exit(3);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void write_step(int dir, uint32_t step_id, uint32_t slice, uint64_t limit)
{
	struct hami_limits limits = {.magic = HAMI_LIMITS_MAGIC,
				     .step_id = step_id,
				     .slice_index = slice,
				     .mem_limit_bytes = limit};

	CHECK(record_write_step(dir, &limits) == 0);
}

static void fence(const char *library, const char *program)
{
	const struct options opt = {.run_dir = RUN, .interposer = MARK, .preload = PRELOAD_LDSO};
	char error[PATH_MAX + 256] = "", list[64];
	int dir;

	own_etc_and_run(library);
	dir = record_open_dir(RUN, JOB);
	CHECK(dir >= 0);
	write_step(dir, 0, 0, 100);
	write_step(dir, 1, 0, 200);
	write_step(dir, 3, 0, 300);
	write_step(dir, 3, 1, 301);

	CHECK(ldso_prepare(dir, &opt, 1, error, sizeof(error)) < 0);
	CHECK(strstr(error, "touch /etc/ld.so.preload") && strstr(error, "preload = \"env\""));
	CHECK(run_task(&opt, program, 0, 1, "100") == 2); /* not prepared: not entered */
	put("/etc/ld.so.preload", "# the site's own list\n");
	CHECK(ldso_prepare(dir, &opt, 1, error, sizeof(error)) == 0);
	CHECK(run_task(&opt, program, 0, 1, "100") == 0);
	CHECK(ldso_prepare(dir, &opt, 1, error, sizeof(error)) == 0); /* the job's next step */
	CHECK(run_task(&opt, program, 1, 1, "200") == 0);
	CHECK(run_task(&opt, program, 2, 1, "0") == 2);   /* no record, no task */
	CHECK(run_task(&opt, program, 3, 2, "300") == 2); /* its second slice is not prepared */
	CHECK(ldso_prepare(dir, &opt, 2, error, sizeof(error)) == 0);
	CHECK(run_task(&opt, program, 3, 2, "300") == 0);
	refused_where_root_is_no_mount(&opt);

	/* Outside of the tasks nothing has changed. */
	get("/etc/ld.so.preload", list, sizeof(list));
	CHECK_TEXT(list, "# the site's own list\n");
	CHECK(access(HAMI_FILE_SELF "/" HAMI_FILE_SELF_LIMITS, F_OK) < 0);
}

int main(int argc, char **argv)
{
	char program[PATH_MAX], at[] = "/tmp/hami-hpc-root-XXXXXX";
	int status;
	pid_t pid;

	if (argc == 3 && strcmp(argv[1], "task") == 0)
		return task(argv[2]);
	CHECK(argc == 2); /* the library */
	CHECK(geteuid() == 0);
	CHECK(realpath("/proc/self/exe", program));
	CHECK(mkdtemp(at));
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		if (refused_without_rights())
			_exit(0);
		own_mounts(at);
		fence(argv[1], program);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	umount2(at, MNT_DETACH); /* shown here too where mounts are shared */
	CHECK(rmdir(at) == 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
