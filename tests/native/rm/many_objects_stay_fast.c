/* SPDX-License-Identifier: Apache-2.0 */
/* Prints how long one more object takes to make and free, ns, with as many alive as the argument says. */
#include <time.h>

#include "client.h"

enum { TIMES = 2000 };

int main(int argc, char **argv)
{
	struct timespec from, to;
	CHECK(argc == 2);
	open_client();
	for (int i = 0; i < atoi(argv[1]); i++) {
		struct rm_memory p = {.size = 4096, .flags = RM_FLAG_VIRTUAL};
		CHECK(i % 2 ? make_group(RM_ENGINE_COMPUTE)
			    : make(rm.device, 0, RM_CLASS_VIRTUAL_MEMORY, &p, sizeof p));
	}
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (int i = 0; i < TIMES; i++) {
		uint32_t group = make_group(RM_ENGINE_COMPUTE);
		CHECK(group && !unmake(group));
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%.0f\n",
	       ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / TIMES);
	return 0;
}
