/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void run_with_faults(void *unused)
{
	(void)unused;
	CUdeviceptr p[4];
	CUcontext context;
	setenv("HAMI_SIM_FAULTS", "cuMemAlloc=2:after=2:times=1;cuCtxSynchronize=0:delay_us=30000", 1);
	OK(cuInit(0));
	OK(cuCtxCreate(&context, NULL, 0, 0));
	OK(cuMemAlloc(&p[0], 1));
	OK(cuMemAlloc(&p[1], 1));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p[2], 1));
	OK(cuMemAlloc(&p[3], 1));
	uint64_t start = now_ns();
	OK(cuCtxSynchronize());
	CHECK(now_ns() - start >= 30 * MS);
	GIVES(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(NULL)); /* from the file */
}

static void run_with_nonsense(void *unused)
{
	(void)unused;
	CHECK(freopen("/dev/null", "w", stderr)); /* it complains there */
	setenv("HAMI_SIM_FAULTS", "cuMemAlloc=two", 1);
	GIVES(CUDA_ERROR_NO_DEVICE, cuInit(0));
}

static void run_without_a_machine(void *directory)
{
	CHECK(freopen("/dev/null", "w", stderr));
	if (directory)
		setenv("HAMI_SIM", directory, 1);
	else
		unsetenv("HAMI_SIM");
	GIVES(CUDA_ERROR_NO_DEVICE, cuInit(0));
}

int main(void)
{
	char path[128];
	make_machine("h200");
	snprintf(path, sizeof path, "%s/faults", machine_dir);
	FILE *file = fopen(path, "w");
	CHECK(file && fputs("# a comment\ncuStreamSynchronize=719\n", file) >= 0 && fclose(file) == 0);
	CHECK(child_status(start_child(run_with_faults, NULL)) == 0);
	CHECK(child_status(start_child(run_with_nonsense, NULL)) == 0);
	CHECK(child_status(start_child(run_without_a_machine, NULL)) == 0);
	CHECK(child_status(start_child(run_without_a_machine, "/nonexistent")) == 0);
	return 0;
}
