/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks, vforks and a daemon's double fork, at every moment of the keeper's work: no child hangs, with CUDA or
 * without, and the parent goes on.
 */
#include <sys/wait.h>

#include "../interposer/check.h"

static CUfunction kernel;

static void launch(void)
{
	uint64_t ns = 500000;
	void *params[] = {&ns};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

static void child(int how)
{
	CUmodule module;
	if (how == 0)
		exit(0); /* with all handlers */
	if (how == 1) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	if (how == 2 && fork() > 0)
		_exit(0);
	if (how == 3) { /* the simulation allows it */
		start();
		OK(cuModuleLoadData(&module, "image"));
		OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
		launch();
		OK(cuCtxSynchronize());
	}
	exit(0);
}

int main(void)
{
	CUmodule module;
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	for (int i = 0; i < 60; i++) {
		launch();
		usleep((useconds_t)(i * 137 % 3000));
		pid_t pid = i % 5 == 4 ? vfork() : fork();
		CHECK(pid >= 0);
		if (!pid && i % 5 == 4) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		if (!pid)
			child(i % 5);
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	OK(cuCtxSynchronize());
	return 0;
}
