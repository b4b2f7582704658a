/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches more than fits a small cap, until a signal's handler ends the program amid a wait for the budget, whose exit
 * handler destroys the context. The signal comes when the kernel says that the thread sleeps: anywhere else it could hold a
 * lock of the driver's.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "../interposer/check.h"

static CUcontext context;
static pthread_t launching;

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

/* Sends the signal once the first thread sleeps, but for the beginning. */
static void *send(void *nothing)
{
	char path[64], text[64];
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", getpid());
	usleep(300000);
	for (;; usleep(1000)) {
		const int fd = open(path, O_RDONLY | O_CLOEXEC);
		CHECK(fd >= 0);
		const ssize_t length = read(fd, text, sizeof text - 1);
		close(fd);
		text[length > 0 ? length : 0] = '\0';
		if (strtol(text, NULL, 10) == SYS_clock_nanosleep)
			break;
	}
	CHECK(pthread_kill(launching, SIGUSR1) == 0);
	return nothing;
}

int main(void)
{
	CUmodule module;
	CUfunction kernel;
	uint64_t ns = 100000;
	void *params[] = {&ns};
	pthread_t sender;
	OK(cuInit(0));
	OK(cuCtxCreate(&context, NULL, 0, 0));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_ns"));
	CHECK(atexit(destroy) == 0);
	CHECK(signal(SIGUSR1, end) != SIG_ERR);
	launching = pthread_self();
	CHECK(pthread_create(&sender, NULL, send, NULL) == 0);
	for (;;)
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}
