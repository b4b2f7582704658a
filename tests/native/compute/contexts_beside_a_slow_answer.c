/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts_beside_a_slow_answer
 *
 * Makes and ends contexts while libcuda does not answer the keeper's question about another one (a fault). Prints
 * how long that took at most, ms.
 */
#include "../interposer/check.h"

int main(void)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 1000000;
	void *params[] = {&ns};
	start();
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	usleep(200000); /* the keeper asks meanwhile */
	double longest = 0;
	for (int i = 0; i < 5; i++) {
		CUcontext context;
		double begin = now_ms();
		OK(cuCtxCreate(&context, NULL, 0, 0));
		OK(cuCtxDestroy(context));
		double took = now_ms() - begin;
		longest = took > longest ? took : longest;
	}
	printf("%.1f\n", longest);
	return 0;
}
