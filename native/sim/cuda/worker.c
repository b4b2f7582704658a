/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that runs host functions, one after another in the order in which they were submitted, each when
 * the work before it is over. It is started by the first one.
 */
#include "sim_cuda.h"

#include <signal.h>
#include <stdlib.h>

struct callback {
	void (*function)(void *);
	void *argument;
	uint32_t gpu, line;
	uint64_t position;
	struct callback *next;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool started;
	uint64_t submitted;
	_Atomic uint64_t done;
	struct callback *first, **last;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

uint64_t sim_callbacks_done(void)
{
	return atomic_load(&worker.done);
}

static void *run(void *unused)
{
	pthread_mutex_lock(&worker.lock);
	for (;;) {
		while (!worker.first)
			pthread_cond_wait(&worker.changed, &worker.lock);
		struct callback *c = worker.first;
		worker.first = c->next;
		if (!worker.first)
			worker.last = &worker.first;
		pthread_mutex_unlock(&worker.lock);
		timeline_wait(&sim.view, c->line, c->gpu, c->position);
		c->function(c->argument);
		free(c);
		pthread_mutex_lock(&worker.lock);
		atomic_fetch_add(&worker.done, 1);
		pthread_cond_broadcast(&worker.changed);
	}
	return unused;
}

/* Takes no signal from the application. With worker.lock held. */
static bool start(void)
{
	pthread_t thread;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	worker.last = &worker.first;
	worker.started = pthread_create(&thread, NULL, run, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (worker.started)
		pthread_detach(thread);
	return worker.started;
}

CUresult sim_callback(struct CUstream_st *stream, void (*function)(void *), void *argument)
{
	struct callback *c = calloc(1, sizeof *c);
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->function = function;
	c->argument = argument;
	c->gpu = stream->context->device;
	c->line = stream->context->line;
	c->position = sim_stream_position(stream);
	pthread_mutex_lock(&worker.lock);
	if (!worker.started && !start()) {
		pthread_mutex_unlock(&worker.lock);
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*worker.last = c;
	worker.last = &c->next;
	atomic_store(&stream->callbacks, ++worker.submitted);
	pthread_cond_broadcast(&worker.changed);
	pthread_mutex_unlock(&worker.lock);
	return CUDA_SUCCESS;
}

void sim_callbacks_wait(uint64_t count)
{
	pthread_mutex_lock(&worker.lock);
	while (atomic_load(&worker.done) < count)
		pthread_cond_wait(&worker.changed, &worker.lock);
	pthread_mutex_unlock(&worker.lock);
}

void sim_worker_before_fork(void)
{
	pthread_mutex_lock(&worker.lock);
}

void sim_worker_after_fork(void)
{
	pthread_mutex_unlock(&worker.lock);
}

void sim_worker_fork_child(void)
{
	pthread_cond_init(&worker.changed, NULL);
	worker.started = false;
	worker.first = NULL;
	worker.submitted = 0;
	atomic_store(&worker.done, 0);
	sim_worker_after_fork();
}
