// SPDX-License-Identifier: GPL-2.0-or-later
/* container.h: what a container must show is added once, behind the user's own binds, and taken out alone. */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "container.h"

#define OURS                                                                                                 \
	"/run/hami-hpc/self:/run/hami-hpc/self,/run/hami-hpc/self/container.preload:/etc/ld.so.preload:ro,"  \
	"/l.so:/l.so:ro"

static const struct options opt = {
	.run_dir = "/run/elsewhere", .interposer = "/l.so", .preload = PRELOAD_LDSO};

static void check(char *got, const char *wanted)
{
	CHECK_TEXT(got, wanted);
	free(got);
}

static void check_file(int dir, const char *name, const char *wanted)
{
	char text[1024] = "";
	int fd = openat(dir, name, O_RDONLY);

	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	CHECK_TEXT(text, wanted);
}

static void files_are_written_whole_and_again(void)
{
	char path[] = "/tmp/hami-hpc-container-XXXXXX";
	struct dirent *entry;
	int dir, count = 0;
	DIR *list;

	CHECK(mkdtemp(path));
	dir = open(path, O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	CHECK(container_write(dir, &opt) == 0);
	CHECK(container_write(dir, &opt) == 0); /* the job's next step */
	check_file(dir, "container.preload", "/l.so\n");
	check_file(
		dir, "container.mounts",
		"/run/hami-hpc/self /run/hami-hpc/self none x-create=dir,rbind,rw,nosuid,nodev,noexec,rprivate 0 0\n"
		"/run/hami-hpc/self/container.preload /etc/ld.so.preload none "
		"x-create=file,bind,ro,nosuid,nodev,noexec,private 0 0\n"
		"/l.so /l.so none x-create=file,bind,ro,nosuid,nodev,private 0 0\n");
	list = fdopendir(dir);
	CHECK(list);
	while ((entry = readdir(list))) {
		if (entry->d_name[0] == '.')
			continue;
		count++;
		CHECK(unlinkat(dir, entry->d_name, 0) == 0);
	}
	CHECK(count == 2); /* no temporary file is left */
	closedir(list);
	CHECK(rmdir(path) == 0);
}

static void a_value_that_linux_would_not_pass_on_is_left_alone(void)
{
	enum { LONG = 128 * 1024 };
	char *old = malloc(LONG + 1), *with;

	CHECK(old);
	memset(old, 'a', LONG);
	old[LONG] = '\0';
	CHECK(!container_binds_with(old, &opt));
	old[LONG - 1024] = '\0';
	with = container_binds_with(old, &opt);
	check(container_binds_without(with, &opt), old);
	free(with);
	free(old);
}

int main(void)
{
	check(container_binds_with(NULL, &opt), OURS);
	check(container_binds_with("", &opt), OURS);
	check(container_binds_with(OURS, &opt), OURS);
	check(container_binds_with("/a b:/c\\,d:ro,/e", &opt), OURS ",/a b:/c\\,d:ro,/e");
	check(container_binds_with("/a," OURS, &opt), OURS ",/a"); /* the first bind on a place counts */
	check(container_binds_with("/a," OURS ",/b," OURS, &opt), OURS ",/a,/b");

	check(container_binds_without(NULL, &opt), "");
	check(container_binds_without(OURS, &opt), "");
	check(container_binds_without("/a," OURS, &opt), "/a");
	check(container_binds_without(OURS ",/a", &opt), "/a");
	check(container_binds_without("/a," OURS ",/b", &opt), "/a,/b");
	check(container_binds_without("x" OURS "," OURS "y", &opt), "x" OURS "," OURS "y");

	CHECK(container_binds_has("/a," OURS, &opt));
	CHECK(!container_binds_has("/a," OURS "/more", &opt));
	CHECK(!container_binds_has("", &opt));
	CHECK(!container_binds_has(NULL, &opt));
	files_are_written_whole_and_again();
	a_value_that_linux_would_not_pass_on_is_left_alone();
	return 0;
}
