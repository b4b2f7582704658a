/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child that hides the first device has the second one's limit on its device 0. */
#include <sys/wait.h>

#include "several.h"

int main(void)
{
	int status;
	open_all();
	CHECK(device_count == 2);
	pid_t child = fork();
	if (!child) {
		char limit[32];
		size_t total, left;
		snprintf(limit, sizeof limit, "%zu", limits[1] / MIB);
		CHECK(setenv("LIMITS_MIB", limit, 1) == 0 && setenv("CUDA_VISIBLE_DEVICES", "1", 1) == 0);
		open_all();
		OK(cuDeviceTotalMem(&total, 0));
		CHECK(total == limits[0]);
		OK(cuMemGetInfo(&left, &total));
		CHECK(total == limits[0]);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
