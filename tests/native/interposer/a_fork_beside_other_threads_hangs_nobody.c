/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks while other threads ask for functions and for managed memory: whatever locks they hold, the child can
 * ask for functions and free too.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define FORKS 200

static CUcontext context;
static _Atomic int stop;

static void ask_for_a_function(void)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult answer;
	OK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &answer));
	CHECK(function != NULL);
}

static void *ask(void *unused)
{
	(void)unused;
	while (!stop)
		ask_for_a_function();
	return NULL;
}

static void *allocate(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	while (!stop) {
		CUdeviceptr managed;
		OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
		OK(cuMemFree(managed));
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[2];
	CUdeviceptr mine;
	start();
	OK(cuCtxGetCurrent(&context));
	OK(cuMemAllocManaged(&mine, 4096, CU_MEM_ATTACH_GLOBAL));
	CHECK(pthread_create(&threads[0], NULL, ask, NULL) == 0);
	CHECK(pthread_create(&threads[1], NULL, allocate, NULL) == 0);
	for (int n = 0; n < FORKS; n++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			alarm(10); /* a lock that stays held ends the child by SIGALRM */
			ask_for_a_function();
			CHECK(cuMemFree(mine) != CUDA_SUCCESS);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	OK(cuMemFree(mine));
	return 0;
}
