/* SPDX-License-Identifier: Apache-2.0 */
/* Launches more than fits a small cap, until a signal's handler ends the program, whose exit handler destroys the context. */
#include <signal.h>
#include <sys/time.h>

#include "../interposer/check.h"

static CUcontext context;

/* For ThreadSanitizer, which is right about exit() in a handler: programs do it all the same. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_signal_unsafe=0:detect_deadlocks=0";
}

static void end(int number)
{
	(void)number;
	exit(0);
}

static void destroy(void)
{
	cuCtxDestroy(context);
}

int main(void)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 5000000;
	void *params[] = {&ns};
	OK(cuInit(0));
	OK(cuCtxCreate(&context, NULL, 0, 0));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	CHECK(atexit(destroy) == 0);
	CHECK(signal(SIGALRM, end) != SIG_ERR);
	CHECK(setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 400000}}, NULL) == 0);
	for (;;)
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}
