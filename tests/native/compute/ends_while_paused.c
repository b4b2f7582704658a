/* SPDX-License-Identifier: Apache-2.0 */
/* Ends in the way of argv[1] and leaves work behind: return, exit, _exit, abort, thread or exec. */
#include <pthread.h>
#include <string.h>

#include "../interposer/check.h"

static void *leave(void *unused)
{
	exit(0);
	return unused;
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 5000000;
	void *params[] = {&ns};
	pthread_t thread;
	CHECK(argc == 2);
	if (!strcmp(argv[1], "again"))
		return 0;
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	for (int i = 0; i < 20; i++)
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	usleep(60000); /* somewhere in the cycle */
	if (!strcmp(argv[1], "exit"))
		exit(0);
	if (!strcmp(argv[1], "_exit"))
		_exit(0);
	if (!strcmp(argv[1], "abort"))
		abort();
	if (!strcmp(argv[1], "exec"))
		execl("/proc/self/exe", argv[0], "again", (char *)NULL);
	if (!strcmp(argv[1], "thread")) {
		CHECK(pthread_create(&thread, NULL, leave, NULL) == 0);
		pthread_exit(NULL); /* the main thread goes first */
	}
	return 0;
}
