/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that is cancelled, at any instruction of it, or that ends inside a call that waits while memory is moved, is
 * inside no more and waits no more (limits/hold.h). Nor does it in a forked child.
 */
#include "../../../native/interposer/limits/hold.c"

#include <sched.h>
#include <sys/wait.h>

#include "check.h"

enum { ROUNDS = 1000, LEAST_NS = 2000000000 };

static _Atomic bool begun;
static pthread_key_t later;
static pthread_barrier_t barrier;

static void *ends_inside(void *how)
{
	hami_hold_enter(HAMI_HOLD_WORK);
	hami_hold_enter(HAMI_HOLD_MEMORY);
	begun = true;
	if (how)
		pthread_exit(NULL);
	for (;;)
		usleep(1000); /* a cancellation point */
}

static void *loops(void *nothing)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		hami_hold_enter(HAMI_HOLD_WORK);
		hami_hold_enter(HAMI_HOLD_MEMORY);
		begun = true;
		hami_hold_leave(HAMI_HOLD_MEMORY);
		hami_hold_leave(HAMI_HOLD_WORK);
	}
	return nothing;
}

static void use_again(void *nothing)
{
	(void)nothing;
	hami_hold_enter(HAMI_HOLD_WORK);
	hami_hold_leave(HAMI_HOLD_WORK);
	hami_hold_enter(HAMI_HOLD_MEMORY);
}

static void *ends_and_enters_once_more(void *nothing)
{
	begun = true;
	hami_hold_enter(HAMI_HOLD_WORK);
	CHECK(pthread_setspecific(later, &later) == 0);
	return nothing;
}

static void *stays_inside(void *nothing)
{
	hami_hold_enter(HAMI_HOLD_WORK);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	hami_hold_leave(HAMI_HOLD_WORK);
	return nothing;
}

static pthread_t started(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	begun = false;
	CHECK(pthread_create(&thread, NULL, run, argument) == 0);
	return thread;
}

static void nobody_is_inside(void)
{
	for (enum hami_hold what = 0; what < HAMI_HOLDS; what++) {
		CHECK(!hami_hold_waits(what));
		CHECK(hami_hold_close(what, LEAST_NS));
		hami_hold_open(what);
	}
}

static void cancelled_where(void *(*run)(void *), long pause_ns)
{
	pthread_t thread = started(run, NULL);
	while (!begun)
		sched_yield();
	nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
	nobody_is_inside();
}

/* Cancelled while its call waits. */
static void cancelled_waiting(void)
{
	CHECK(hami_hold_close(HAMI_HOLD_WORK, LEAST_NS));
	pthread_t thread = started(loops, NULL);
	while (!hami_hold_waits(HAMI_HOLD_WORK))
		sched_yield();
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(!hami_hold_waits(HAMI_HOLD_WORK));
	hami_hold_open(HAMI_HOLD_WORK);
	nobody_is_inside();
}

/* Those that have ended take nobody else out. */
static void another_stays_inside(void)
{
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
	pthread_t staying = started(stays_inside, NULL);
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(started(ends_inside, &begun), NULL) == 0);
	CHECK(!hami_hold_close(HAMI_HOLD_WORK, 1000000));
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(staying, NULL) == 0);
	nobody_is_inside();
}

static void forked_inside(void)
{
	int status;
	hami_hold_enter(HAMI_HOLD_WORK);
	pid_t child = fork();
	if (!child) {
		hami_hold_forked();
		nobody_is_inside();
		hami_hold_leave(HAMI_HOLD_WORK); /* of the parent's call */
		nobody_is_inside();
		hami_hold_enter(HAMI_HOLD_WORK);
		CHECK(!hami_hold_close(HAMI_HOLD_WORK, 1000000));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!hami_hold_close(HAMI_HOLD_WORK, 1000000));
	hami_hold_leave(HAMI_HOLD_WORK);
	nobody_is_inside();
}

int main(void)
{
	alarm(120); /* where it waits for ever */
	hami_hold_begin();
	hami_hold_enter(HAMI_HOLD_WORK);
	hami_hold_leave(HAMI_HOLD_WORK);
	nobody_is_inside();
	CHECK(pthread_key_create(&later, use_again) == 0); /* its destructors run after the hold's */
	CHECK(pthread_join(started(ends_inside, &begun), NULL) == 0);
	nobody_is_inside();
	CHECK(pthread_join(started(ends_and_enters_once_more, NULL), NULL) == 0);
	nobody_is_inside();
	another_stays_inside();
	forked_inside();
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
	return 0; /* neither knows cancelled threads: of one it keeps the stack's shadow, or it never cancels */
#endif
	cancelled_where(ends_inside, 0);
	cancelled_waiting();
	for (int i = 0; i < ROUNDS; i++)
		cancelled_where(loops, i * 7 % 1000);
	return 0;
}
