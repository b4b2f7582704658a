/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the processor time of making and freeing one more object, ns, with as many alive as the argument says: the
 * least of many rounds, which a busy machine does not change.
 */
#include <time.h>

#include "client.h"

enum { ROUNDS = 40, TIMES = 50 };

int main(int argc, char **argv)
{
	struct timespec from, to;
	double least_ns = 0;
	CHECK(argc == 2);
	open_client();
	for (int i = 0; i < atoi(argv[1]); i++) {
		struct rm_memory p = {.size = 4096, .flags = RM_FLAG_VIRTUAL};
		CHECK(i % 2 ? make_group(RM_ENGINE_COMPUTE)
			    : make(rm.device, 0, RM_CLASS_VIRTUAL_MEMORY, &p, sizeof p));
	}
	for (int round = 0; round < ROUNDS; round++) {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (int i = 0; i < TIMES; i++) {
			uint32_t group = make_group(RM_ENGINE_COMPUTE);
			CHECK(group && !unmake(group));
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		double ns = ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
			    TIMES;
		least_ns = round == 0 || ns < least_ns ? ns : least_ns;
	}
	printf("%.0f\n", least_ns);
	return 0;
}
