/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads libcuda with RTLD_DEEPBIND, so that it calls libc's own ioctl, and looks its functions up by libc's own dlsym:
 * the interposer is loaded and no call passes it. On a GPU node a program that makes the resource manager's requests by
 * raw system calls (tests/native/rm has such requests) is no other case; the simulated kernel is a preloaded library
 * itself and sees neither, so here the context has no channels.
 */
#include "evader.h"

int main(int argc, char **argv)
{
	struct driver d =
		driver_of(libc_dlsym(), dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
	return evade(&d, argc, argv);
}
