/* SPDX-License-Identifier: Apache-2.0 */
/* What one process of the job holds, another cannot have; what a killed one held, it can. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "check.h"

/* The child: fills up, says so, and waits to be killed. */
static int child(void)
{
	start();
	CHECK(fill(16 * MIB) > 0);
	CHECK(write(STDOUT_FILENO, "f", 1) == 1);
	pause();
	return 1;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "child"))
		return child();
	CUdeviceptr piece;
	start();
	size_t before = free_bytes();
	for (int round = 0; round < 3; round++) {
		int ends[2];
		char told;
		CHECK(pipe(ends) == 0);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			dup2(ends[1], STDOUT_FILENO);
			execl("/proc/self/exe", argv[0], "child", (char *)NULL);
			_exit(127);
		}
		close(ends[1]);
		CHECK(read(ends[0], &told, 1) == 1);
		close(ends[0]);
		CHECK(free_bytes() < 16 * MIB);
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&piece, 16 * MIB));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		OK(cuMemAlloc(&piece, before / (2 * MIB) * (2 * MIB))); /* without anybody's help */
		OK(cuMemFree(piece));
		CHECK(free_bytes() == before);
	}
	return 0;
}
