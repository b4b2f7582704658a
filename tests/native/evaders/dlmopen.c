/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads libcuda into a namespace of its own, with a libc of its own: what is preloaded lies in the program's. The
 * interposer's dlsym answers with its hooks in any namespace, so the functions are looked up by libc's. The simulated
 * kernel is preloaded too, so here the context has no channels.
 */
#include "evader.h"

int main(int argc, char **argv)
{
	struct driver d =
		driver_of(libc_dlsym(), dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
	return evade(&d, argc, argv);
}
