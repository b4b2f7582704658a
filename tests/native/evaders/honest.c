/* SPDX-License-Identifier: Apache-2.0 */
/*
 * honest MIB SECONDS [PERCENT]: what programs that evade nothing may do at worst, over and over. All of it together
 * wants MIB at most, of which each context takes its part, so that a job of more than that never sees a refusal. Prints
 * how many rounds it did.
 *
 *	take and give    pieces of all sizes
 *	contexts         made and destroyed, with memory left in them
 *	children         of a process that has a context, executed anew, as CUDA wants it; they end in three ways, one
 *	                 of them SIGKILL
 *	threads          that take and give at the same time
 *	churn            short processes, one after the other
 *	exec             of the program itself, while it holds memory
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "evader.h"

#define CONTEXT_MIB 512 /* of the simulated H200 */
#define THREADS 8
#define CHILDREN 3
#define CHILD "child" /* argv[0] of one; then MIB, how it ends, PERCENT */

static struct {
	size_t mib; /* for memory besides the contexts of parent and children */
	int percent;
	CUfunction kernel;
	CUcontext context;
} self;

static CUdeviceptr take(size_t mib)
{
	CUdeviceptr address;
	OK(cuMemAlloc(&address, mib * MIB));
	return address;
}

static void work(double seconds)
{
	const struct driver d = LINKED_DRIVER;
	spin(&d, self.kernel, seconds, self.percent);
}

static void open_gpu(void)
{
	const struct driver d = LINKED_DRIVER;
	self.kernel = start(&d);
	OK(cuCtxGetCurrent(&self.context));
}

static void take_and_give(void)
{
	CUdeviceptr piece[4];
	for (size_t round = 0; round < 8; round++) {
		for (size_t i = 0; i < 4; i++)
			piece[i] = take(self.mib / 4 >> round ? self.mib / 4 >> round : 1);
		work(0.01);
		for (size_t i = 0; i < 4; i++)
			OK(cuMemFree(piece[i]));
	}
	OK(cuMemFree(take(self.mib)));
}

static void contexts(void)
{
	for (int i = 0; i < 6; i++) {
		CUcontext context;
		OK(cuCtxCreate(&context, NULL, 0, 0));
		take(self.mib);
		OK(cuCtxDestroy(context)); /* with what was taken in it */
		OK(cuCtxSetCurrent(self.context));
	}
}

static int be_child(size_t mib, int how)
{
	open_gpu();
	CUdeviceptr address = take(mib);
	work(0.02);
	if (how == 0)
		OK(cuMemFree(address));
	if (how == 2)
		raise(SIGKILL);
	return 0;
}

/* Returns once the child is there; it ends by itself. */
static pid_t child(size_t mib, int how)
{
	char size[32], way[16], percent[16];
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	snprintf(size, sizeof size, "%zu", mib);
	snprintf(way, sizeof way, "%d", how);
	snprintf(percent, sizeof percent, "%d", self.percent);
	execl("/proc/self/exe", CHILD, size, way, percent, NULL);
	CHECK(!"exec");
}

static void await(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

static void children(void)
{
	pid_t pid[CHILDREN];
	CUdeviceptr own = take(self.mib / 4);
	for (int i = 0; i < CHILDREN; i++)
		pid[i] = child(self.mib / 4, i);
	for (int i = 0; i < CHILDREN; i++)
		await(pid[i]);
	OK(cuMemFree(own));
}

static void churn(void)
{
	for (int i = 0; i < 6; i++)
		await(child(self.mib, i % 3));
}

static void *thread(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(self.context));
	for (size_t i = 0; i < 50; i++)
		OK(cuMemFree(take(1 + i % (self.mib / THREADS - 1))));
	return NULL;
}

static void threads(void)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	char seconds[32], rounds[32];
	if (argc == 4 && !strcmp(argv[0], CHILD)) {
		self.percent = percent_of(argc, argv);
		return be_child(strtoull(argv[1], NULL, 10), atoi(argv[2]));
	}
	double end = now_s() + seconds_of(argc, argv);
	CHECK(mib_of(argc, argv) >= (1 + CHILDREN) * CONTEXT_MIB + 64);
	self.mib = mib_of(argc, argv) - (1 + CHILDREN) * CONTEXT_MIB;
	self.percent = percent_of(argc, argv);
	open_gpu();
	take_and_give();
	contexts();
	children();
	threads();
	churn();
	int done = 1 + (argc > 4 ? atoi(argv[4]) : 0);
	take(self.mib);
	if (now_s() < end) {
		snprintf(seconds, sizeof seconds, "%.3f", end - now_s());
		snprintf(rounds, sizeof rounds, "%d", done);
		execl("/proc/self/exe", argv[0], argv[1], seconds, argc > 3 ? argv[3] : "100", rounds, NULL);
		CHECK(!"exec");
	}
	printf("%d rounds within %zu MiB\n", done, mib_of(argc, argv));
	return 0;
}
