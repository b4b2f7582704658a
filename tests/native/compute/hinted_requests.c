/* SPDX-License-Identifier: Apache-2.0 */
/* hinted_requests COUNT KERNEL_US: COUNT requests of a kernel each, which the program marks by hints. */
#include "../../../native/include/hami_hpc.h"
#include "../interposer/check.h"

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction kernel;
	CHECK(argc == 3);
	uint64_t ns = strtoull(argv[2], NULL, 10) * 1000;
	void *params[] = {&ns};
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	for (int i = 0; i < atoi(argv[1]); i++) {
		CHECK(hami_hint_begin(0) == 0);
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		CHECK(hami_hint_end() == 0);
	}
	return 0;
}
