/* SPDX-License-Identifier: Apache-2.0 */
/*
 * what_fits_is_never_refused MS MIB
 *
 * Four threads, each of which holds at most one piece of MIB. Together with the others that run at the same
 * time they may hold exactly what the limit leaves, so every request fits, in any order: none may be refused.
 * First all hold their piece and wait ("f" on standard output, a byte on standard input), and one byte more
 * is refused; then they allocate and free for MS milliseconds.
 */
#include <pthread.h>
#include <sched.h>

#include "check.h"

static CUcontext context;
static pthread_barrier_t all_hold, go;
static size_t bytes;
static double span_ms;

static void *work(void *unused)
{
	CUdeviceptr piece;
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc(&piece, bytes));
	pthread_barrier_wait(&all_hold);
	pthread_barrier_wait(&go);
	for (double end = now_ms() + span_ms; now_ms() < end;) {
		OK(cuMemFree(piece));
		sched_yield();
		OK(cuMemAlloc(&piece, bytes));
	}
	OK(cuMemFree(piece));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	CUdeviceptr more;
	char told;
	CHECK(argc == 3);
	span_ms = atof(argv[1]);
	bytes = (size_t)atol(argv[2]) * MIB;
	start();
	OK(cuCtxGetCurrent(&context));
	CHECK(pthread_barrier_init(&all_hold, NULL, 5) == 0 && pthread_barrier_init(&go, NULL, 5) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	pthread_barrier_wait(&all_hold);
	CHECK(write(STDOUT_FILENO, "f", 1) == 1 && read(STDIN_FILENO, &told, 1) == 1);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, bytes));
	CHECK(write(STDOUT_FILENO, "r", 1) == 1 && read(STDIN_FILENO, &told, 1) == 1);
	pthread_barrier_wait(&go);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
