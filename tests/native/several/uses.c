/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uses DEVICE...: makes a context on each device and prints what CUDA says, one line. Then, for each line of standard
 * input: "again" does the same, "fork" leaves a child that uses no GPU and prints its pid, "exec" starts this program anew,
 * "free" gives the contexts back, "managed" allocates managed memory. Ends with the input.
 */
#include <signal.h>

#include "several.h"

static void open_contexts(int count, char **devices)
{
	for (int i = 0; i < count; i++)
		printf("%d ", (int)cuDevicePrimaryCtxRetain(&contexts[i], atoi(devices[i])));
}

static void leave_child(void)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		signal(SIGALRM, SIG_DFL);
		alarm(60);
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		pause();
	}
	printf("%d", (int)pid);
}

int main(int argc, char **argv)
{
	char line[32];
	CUdeviceptr address;
	OK(cuInit(0));
	setvbuf(stdin, NULL, _IONBF, 0);
	open_contexts(argc - 1, argv + 1);
	do {
		printf("\n");
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			return 0;
		if (!strcmp(line, "again\n"))
			open_contexts(argc - 1, argv + 1);
		else if (!strcmp(line, "fork\n"))
			leave_child();
		else if (!strcmp(line, "exec\n"))
			execv("/proc/self/exe", argv);
		else if (!strcmp(line, "free\n"))
			OK(cuDevicePrimaryCtxRelease(atoi(argv[1])));
		else if (!strcmp(line, "managed\n"))
			printf("%d", (int)(cuCtxSetCurrent(contexts[0])
						   ? CUDA_ERROR_INVALID_CONTEXT
						   : cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL)));
	} while (true);
}
