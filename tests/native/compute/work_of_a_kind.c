/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work_of_a_kind KIND MS IDLE_MS: idles, then keeps the GPU busy for MS milliseconds with work of one kind, and
 * prints the percentage of that time that it ran. Kinds: contexts (a kernel in a fresh context each time), ends (the
 * same, and the context's end waits for it), resets (a kernel before each reset of the primary context), light (13 us
 * of work every ms), gappy (1 ms of work, then 1.5 of waiting), bound (10 us of work, launched and waited for), later
 * (light, halfway 20 kernels at a time), descriptors (kernels; halfway all descriptors but the first three are closed).
 */
#include "../interposer/check.h"
#include <stdbool.h>
#include <string.h>

static CUmodule module;
static CUfunction kernel;

static void load(void)
{
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
}

static void spin(uint64_t ns)
{
	void *params[] = {&ns};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

/* Returns how long it runs, ms. */
static double run(const char *kind)
{
	CUcontext context;
	if (!strcmp(kind, "contexts") || !strcmp(kind, "ends")) {
		OK(cuCtxCreate(&context, NULL, 0, 0));
		load();
		spin(20000000);
		if (!strcmp(kind, "contexts"))
			OK(cuCtxSynchronize());
		OK(cuCtxDestroy(context));
		return 20;
	}
	if (!strcmp(kind, "resets")) {
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		OK(cuCtxSetCurrent(context));
		load();
		spin(20000000);
		OK(cuDevicePrimaryCtxReset(0));
		return 20;
	}
	if (!strcmp(kind, "kernels")) {
		for (int i = 0; i < 20; i++)
			spin(1000000);
		OK(cuCtxSynchronize());
		return 20;
	}
	if (!strcmp(kind, "bound")) {
		spin(10000);
		OK(cuCtxSynchronize());
		return 0.01;
	}
	bool light = !strcmp(kind, "light");
	if (light || !strcmp(kind, "gappy"))
		usleep(light ? 987 : 1500);
	spin(light ? 13000 : 1000000);
	OK(cuCtxSynchronize());
	return light ? 0.013 : 1;
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	double span = atof(argv[2]), ran = 0;
	start();
	load();
	run("kernel");
	usleep((useconds_t)atoi(argv[3]) * 1000);
	double begin = now_ms();
	bool closed = strcmp(argv[1], "descriptors") != 0;
	while (now_ms() < begin + span) {
		if (!strcmp(argv[1], "later"))
			ran += run(now_ms() < begin + span / 2 ? "light" : "kernels");
		else
			ran += run(argv[1]);
		if (!closed && now_ms() > begin + span / 2) {
			closefrom(3);
			closed = true;
		}
	}
	printf("%.2f\n", 100 * ran / (now_ms() - begin));
	return 0;
}
