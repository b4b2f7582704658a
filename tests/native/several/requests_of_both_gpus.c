/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests_of_both_gpus COUNT US_FIRST US_SECOND [hints]: COUNT requests of a kernel on each of two devices, which end
 * when both are done; with `hints` the program marks them itself.
 */
#include "../../../native/include/hami_hpc.h"
#include "several.h"

int main(int argc, char **argv)
{
	CUfunction kernel[2];
	CUmodule module;
	CHECK(argc >= 4);
	bool hints = argc > 4;
	open_all();
	for (int i = 0; i < 2; i++) {
		OK(cuCtxSetCurrent(contexts[i]));
		OK(cuModuleLoadData(&module, "image"));
		OK(cuModuleGetFunction(&kernel[i], module, "sim_spin_ns"));
	}
	for (int n = 0; n < atoi(argv[1]); n++) {
		CHECK(!hints || hami_hint_begin(0) == 0);
		for (int i = 0; i < 2; i++) {
			uint64_t ns = strtoull(argv[2 + i], NULL, 10) * 1000;
			void *params[] = {&ns};
			OK(cuCtxSetCurrent(contexts[i]));
			OK(cuLaunchKernel(kernel[i], 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		}
		for (int i = 0; i < 2; i++) {
			OK(cuCtxSetCurrent(contexts[i]));
			OK(cuCtxSynchronize());
		}
		CHECK(!hints || hami_hint_end() == 0);
		usleep(4000);
	}
	return 0;
}
