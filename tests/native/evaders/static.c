/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A statically linked program: no ld.so, so nothing is preloaded. The simulated libcuda is linked into it. On a GPU
 * node it would have a driver client of its own that makes the resource manager's requests, since NVIDIA's libcuda
 * exists as a shared library only; the simulation answers libcuda's requests by a preloaded library, so here its
 * context has no channels.
 */
#include "evader.h"

int main(int argc, char **argv)
{
	return evade(&LINKED_DRIVER, argc, argv);
}
