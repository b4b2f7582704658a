/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a process ends, Linux closes its file with the highest number first. The usage record's, which holds the lock of
 * the process's slot, must be below the driver's, or others get the memory before the driver has it back: also in a child
 * of a process that had asked NVML before it forked.
 */
#include <nvml.h>
#include <string.h>
#include <sys/wait.h>

#include "check.h"

/* The highest descriptor of a file whose path ends so; -1 without one. */
static int last_file(const char *end)
{
	int last = -1;
	for (int fd = 0; fd < 1024; fd++) {
		char link[64], path[4096];
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, path, sizeof path - 1);
		if (n < (ssize_t)strlen(end))
			continue;
		path[n] = '\0';
		if (strcmp(path + n - strlen(end), end) == 0)
			last = fd;
	}
	return last;
}

static void use_the_gpu(void)
{
	start();
	CHECK(last_file("/shared/usage") >= 0);
	CHECK(last_file("/shared/usage") < last_file("/nvidiactl"));
}

int main(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	int status;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		use_the_gpu();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	use_the_gpu();
	return 0;
}
