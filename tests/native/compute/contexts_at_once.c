/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts_at_once MS BUSY IDLE HOW
 *
 * One process with BUSY contexts that work for MS milliseconds, each on a thread of its own, and IDLE ones that have no
 * work. Prints what each busy one ran, percent of the time. HOW:
 *	busy    four kernels of 1 ms in flight in each
 *	turns   they take turns: the kernel of one, 1 ms, is launched when that of the one before is over
 *	waits   four in flight, and each waits for one of the context before it
 *	short   as busy, beside contexts that are made, work for 20 ms, and are destroyed
 *	late    as busy, but the last one has no work in the first half of the time
 *	leaves  as busy, but the last one is destroyed after half of the time
 *	forks   as busy, while the process forks, and its children end at once
 */
#include "../interposer/check.h"
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>

enum { MOST = 64, FLIGHT = 4 };

static struct worker {
	pthread_t thread;
	CUcontext context;
	CUfunction kernel;
	CUevent done[FLIGHT];
	unsigned long count;
	int next;
	double ran_ms;
} workers[MOST];
static int busy;
static double span_ms, begin_ms;
static const char *how;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static int turn;

static void make(struct worker *w)
{
	CUmodule module;
	OK(cuCtxCreate(&w->context, NULL, 0, 0));
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&w->kernel, module, "sim_spin_ns"));
	for (int i = 0; i < FLIGHT; i++)
		OK(cuEventCreate(&w->done[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
}

static void launch(struct worker *w)
{
	uint64_t ns = 1000000;
	void *params[] = {&ns};
	CUevent done = w->done[w->count % FLIGHT];
	if (w->count >= FLIGHT)
		OK(cuEventSynchronize(done));
	OK(cuLaunchKernel(w->kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	OK(cuEventRecord(done, NULL));
	w->count++;
}

/* Waits for its turn; returns false when the time is over. */
static bool has_turn(int index)
{
	pthread_mutex_lock(&lock);
	while (turn != index && turn >= 0)
		pthread_cond_wait(&passed, &lock);
	bool is_over = turn < 0;
	pthread_mutex_unlock(&lock);
	return !is_over;
}

static void pass(int next)
{
	pthread_mutex_lock(&lock);
	turn = next;
	pthread_cond_broadcast(&passed);
	pthread_mutex_unlock(&lock);
}

static void work(struct worker *w, int index, double end_ms)
{
	struct worker *before = &workers[(index + busy - 1) % busy];
	while (now_ms() < end_ms) {
		if (!strcmp(how, "turns")) {
			if (!has_turn(index))
				return;
			launch(w);
			OK(cuCtxSynchronize());
			pass(now_ms() < end_ms ? (index + 1) % busy : -1);
			continue;
		}
		if (!strcmp(how, "waits") && index)
			OK(cuStreamWaitEvent(NULL, before->done[0], 0));
		launch(w);
	}
	if (!strcmp(how, "turns"))
		pass(-1);
}

static void *run(void *one)
{
	struct worker *w = one;
	const int index = (int)(w - workers);
	const bool is_last = index == busy - 1;
	double end_ms = begin_ms + span_ms;
	OK(cuCtxSetCurrent(w->context));
	if (is_last && !strcmp(how, "late"))
		usleep((useconds_t)(span_ms * 500));
	if (is_last && !strcmp(how, "leaves"))
		end_ms -= span_ms / 2;
	work(w, index, end_ms);
	OK(cuCtxSynchronize());
	w->ran_ms = (double)w->count;
	if (is_last && !strcmp(how, "leaves"))
		OK(cuCtxDestroy(w->context));
	return NULL;
}

static void come_and_go(void)
{
	static struct worker short_lived;
	while (now_ms() < begin_ms + span_ms) {
		short_lived.count = 0;
		make(&short_lived);
		for (int i = 0; i < 20; i++)
			launch(&short_lived);
		OK(cuCtxDestroy(short_lived.context)); /* which waits for its work */
	}
}

static void fork_all_the_time(void)
{
	while (now_ms() < begin_ms + span_ms) {
		pid_t child = fork();
		if (!child)
			_exit(0);
		CHECK(child > 0 && waitpid(child, NULL, 0) == child);
		usleep(5000);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	span_ms = atof(argv[1]);
	busy = atoi(argv[2]);
	const int idle = atoi(argv[3]);
	how = argv[4];
	CHECK(busy > 0 && idle >= 0 && busy + idle <= MOST);
	OK(cuInit(0));
	for (int i = 0; i < busy + idle; i++)
		make(&workers[i]);
	begin_ms = now_ms();
	for (int i = 0; i < busy; i++)
		CHECK(!pthread_create(&workers[i].thread, NULL, run, &workers[i]));
	if (!strcmp(how, "short"))
		come_and_go();
	if (!strcmp(how, "forks"))
		fork_all_the_time();
	for (int i = 0; i < busy; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < busy; i++)
		printf("%.2f\n", 100 * workers[i].ran_ms / (now_ms() - begin_ms));
	return 0;
}
