/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary program, started again with libpreloaded_first.so (below, and built from this file too) at the head of
 * LD_PRELOAD: before the interposer there, and before that of /etc/ld.so.preload, which comes after LD_PRELOAD.
 */
#include "evader.h"

#ifdef AS_LIBRARY
#include <stdarg.h>
#include <sys/syscall.h>

/*
 * The functions that the interposer hooks and this program uses. ioctl goes to the kernel; the simulated kernel is a
 * library behind the interposer, so here the context has no channels.
 */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

static void *driver(const char *name)
{
	return libc_dlsym()(dlopen("libcuda.so.1", RTLD_NOW), name);
}

#define FORWARD(name, ...) return ((__typeof__(&name))driver(#name))(__VA_ARGS__)

CUresult CUDAAPI cuInit(unsigned int flags)
{
	FORWARD(cuInit, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	FORWARD(cuDevicePrimaryCtxRetain, context, device);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
				unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
				CUstream stream, void **params, void **extra)
{
	FORWARD(cuLaunchKernel, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
#else
#define INSIDE "PRELOADED_FIRST_INSIDE"

int main(int argc, char **argv)
{
	char self[2048], list[8192];
	const char *others = getenv("LD_PRELOAD");
	if (getenv(INSIDE))
		return evade(&LINKED_DRIVER, argc, argv);
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	CHECK(n > 0);
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	snprintf(list, sizeof list, "%s/libpreloaded_first.so %s", self, others ? others : "");
	setenv("LD_PRELOAD", list, 1);
	setenv(INSIDE, "1", 1);
	execv("/proc/self/exe", argv);
	CHECK(!"exec");
}
#endif
