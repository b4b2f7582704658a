/* SPDX-License-Identifier: Apache-2.0 */
/*
 * the_second_gpu_later MS KERNEL_US: works on the first device for a while; then $LATER is set to 1, and it works on the
 * second alone, and on the first again. Prints the percentages of the second and third span.
 */
#include "several.h"

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	double ms = atof(argv[1]);
	uint64_t us = strtoull(argv[2], NULL, 10);
	read_limits();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
	OK(cuCtxSetCurrent(contexts[0]));
	spin(100, us);
	CHECK(setenv("LATER", "1", 1) == 0);
	OK(cuDevicePrimaryCtxRetain(&contexts[1], 1));
	OK(cuCtxSetCurrent(contexts[1]));
	printf("%.2f\n", spin(ms, us));
	OK(cuCtxSetCurrent(contexts[0]));
	printf("%.2f\n", spin(ms, us));
	return 0;
}
