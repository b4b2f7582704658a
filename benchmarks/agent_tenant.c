/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_tenant MIB KERNEL_MS PERIOD_MS
 *
 * Holds MIB of GPU memory, says so in one line, and runs a kernel of KERNEL_MS in each period until it is killed.
 */
#include <stdlib.h>
#include <unistd.h>

#include "../tests/native/interposer/check.h"

int main(int argc, char **argv)
{
	CUdeviceptr address;
	CUmodule module;
	CUfunction kernel;
	CHECK(argc == 4);
	uint64_t ns = strtoull(argv[2], NULL, 10) * 1000000;
	useconds_t period_us = (useconds_t)strtoul(argv[3], NULL, 10) * 1000;
	void *params[] = {&ns};
	start();
	OK(cuMemAlloc(&address, strtoull(argv[1], NULL, 10) << 20));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	puts("ready");
	fflush(stdout);
	for (;;) {
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		usleep(period_us);
	}
}
