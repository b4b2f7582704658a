// SPDX-License-Identifier: Apache-2.0
/*
 * launch launches N   prints the median cost of a null-kernel launch in ns over N batches of 500
 * launch start        makes a context and ends
 * launch hold MS      makes a context, prints a line, and stays for MS milliseconds
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>
#include <unistd.h>
#include <vector>

__global__ void nothing()
{
}

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	if (cudaFree(0) != cudaSuccess)
		return 1;
	if (argc > 2 && !strcmp(argv[1], "hold")) {
		puts("holding");
		fflush(stdout);
		usleep((useconds_t)atoi(argv[2]) * 1000);
	}
	if (argc < 3 || strcmp(argv[1], "launches"))
		return 0;
	std::vector<double> costs;
	for (int i = 0; i < atoi(argv[2]); i++) {
		double a = now();
		for (int k = 0; k < 500; k++)
			nothing<<<1, 1>>>();
		costs.push_back((now() - a) / 500 * 1e9);
		if (cudaDeviceSynchronize() != cudaSuccess)
			return 1;
	}
	std::sort(costs.begin(), costs.end());
	printf("%.1f\n", costs[costs.size() / 2]);
	return 0;
}
