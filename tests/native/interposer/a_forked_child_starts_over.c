/* SPDX-License-Identifier: Apache-2.0 */
/* A child without exec: its parent's account is not its own, and a CUDA of its own is charged to it. */
#include <sys/wait.h>

#include "check.h"

int main(void)
{
	int status;
	pid_t early = fork(); /* before CUDA is used: may use it */
	CHECK(early >= 0);
	if (!early) {
		CUdeviceptr a;
		start();
		OK(cuMemAlloc(&a, 64 * MIB));
		return 0;
	}
	CHECK(waitpid(early, &status, 0) == early && status == 0);
	CUdeviceptr mine;
	start();
	OK(cuMemAlloc(&mine, 64 * MIB));
	size_t before = free_bytes();
	pid_t late = fork(); /* after: CUDA refuses it, whatever it tries, and its end changes nothing */
	CHECK(late >= 0);
	if (!late) {
		CUdeviceptr a;
		CHECK(cuMemAlloc(&a, 64 * MIB) != CUDA_SUCCESS);
		CHECK(cuMemFree(mine) != CUDA_SUCCESS);
		_exit(0);
	}
	CHECK(waitpid(late, &status, 0) == late && status == 0);
	CHECK(free_bytes() == before);
	OK(cuMemFree(mine));
	CHECK(free_bytes() == before + 64 * MIB);
	return 0;
}
