/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program may close the descriptor of the account, as daemons do, and open files of its own in its place: the limit
 * holds for it and beside it. A program whose standard streams are closed does not find the account in their place.
 */
#include <fcntl.h>
#include <nvml.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#include "check.h"

static int is_account(int fd)
{
	char link[32], path[4096] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	const char *name = strrchr(path, '/');
	return n > 0 && name && strcmp(name, "/usage") == 0;
}

/* Puts a file of the program's in the place of the account, or nothing; how many places there were. */
static int take_places(int own)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++) {
		if (!is_account(fd))
			continue;
		count++;
		CHECK((own < 0 ? close(fd) : dup2(own, fd)) >= 0);
	}
	return count;
}

struct other {
	pid_t pid;
	int held, end; /* pipes: it holds its memory; it may end */
};

/* Starts a process that holds half of the limit, and closes the account's descriptors if it is told to. */
static struct other start_other(int closes)
{
	int held[2], end[2];
	char byte;
	CHECK(pipe(held) == 0 && pipe(end) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CUdeviceptr address;
		start();
		OK(cuMemAlloc(&address, limit_bytes() / 2));
		CHECK(!closes || take_places(-1) > 0);
		CHECK(write(held[1], "h", 1) == 1);
		_exit(read(end[0], &byte, 1) == 1 ? 0 : 1);
	}
	CHECK(read(held[0], &byte, 1) == 1);
	return (struct other){pid, held[0], end[1]};
}

static void end_other(struct other other)
{
	int status;
	CHECK(write(other.end, "e", 1) == 1);
	CHECK(waitpid(other.pid, &status, 0) == other.pid && status == 0);
}

static void in_child(void (*run)(void))
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		run();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void standard_streams(void)
{
	int errors = fcntl(2, F_DUPFD, 100);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	start();
	int found = is_account(0) || is_account(1) || is_account(2);
	dup2(errors, 2);
	CHECK(!found);
}

static void own_file_there(void)
{
	CUdeviceptr address;
	int own = open("/dev/null", O_RDWR);
	struct other other = start_other(0);
	start();
	size_t before = free_bytes();
	CHECK(before < limit_bytes() / 2);
	CHECK(own >= 0 && take_places(own) > 0);
	CHECK(free_bytes() == before);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, limit_bytes() / 2));
	end_other(other);
}

/* One that used NVML before it forked: the child has a descriptor of its own. */
static void closed_in_a_worker(void)
{
	CUdeviceptr address;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	struct other other = start_other(1);
	start();
	CHECK(free_bytes() < limit_bytes() / 2);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, limit_bytes() / 2));
	end_other(other);
}

static void *look_and_be_cancelled(void *context)
{
	OK(cuCtxSetCurrent(context));
	CHECK(pthread_cancel(pthread_self()) == 0);
	free_bytes();
	return context;
}

/* A thread that is cancelled where the account is opened again does not keep its lock. */
static void closed_before_a_thread_ends(void)
{
	CUdeviceptr address;
	CUcontext context;
	pthread_t thread;
	struct other other = start_other(0);
	start();
	OK(cuCtxGetCurrent(&context));
	CHECK(take_places(-1) > 0);
	CHECK(pthread_create(&thread, NULL, look_and_be_cancelled, context) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	OK(cuMemAlloc(&address, MIB));
	end_other(other);
}

int main(void)
{
	in_child(standard_streams);
	in_child(own_file_there);
	in_child(closed_in_a_worker);
	in_child(closed_before_a_thread_ends);
	return 0;
}
