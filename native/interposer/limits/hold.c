/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/hold.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LOOK_NS 200000l /* between two looks whether somebody is inside */

static _Atomic uint32_t closed[HAMI_HOLDS]; /* futexes */
static _Atomic bool counts;                 /* hami_hold_begin() was called */

/*
 * The calls of one thread. It alone changes the numbers, each by one instruction, so that wherever a thread is cancelled
 * they say what is so; the end of the thread sets them to 0. Never freed, but given to another thread.
 */
struct caller {
	struct caller *next;
	_Atomic bool taken;
	_Atomic uint32_t inside[HAMI_HOLDS], waiting[HAMI_HOLDS];
} __attribute__((aligned(64)));

/* Of all threads for which there was no memory, or no key; what they leave behind stays. */
static struct caller others;
static struct caller *_Atomic callers = &others;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

static __thread struct caller *own __attribute__((tls_model("initial-exec")));
static __thread bool passes __attribute__((tls_model("initial-exec")));

void hami_hold_pass(void)
{
	passes = true;
}

void hami_hold_begin(void)
{
	atomic_store(&counts, true);
}

static void clear(struct caller *c)
{
	for (int i = 0; i < HAMI_HOLDS; i++) {
		if (atomic_load(&c->inside[i]))
			atomic_store(&c->inside[i], 0);
		if (atomic_load(&c->waiting[i]))
			atomic_store(&c->waiting[i], 0);
	}
}

/* At the end of a thread. Another key's destructor may come after this one, and enter again. */
static void ended(void *caller)
{
	struct caller *c = caller;
	clear(c);
	own = NULL;
	atomic_store(&c->taken, false);
}

static void make_key(void)
{
	has_key = pthread_key_create(&key, ended) == 0;
}

/* Returns one that no thread has, taken; NULL without memory. */
static struct caller *take(void)
{
	for (struct caller *c = atomic_load(&callers); c != &others; c = c->next)
		if (!atomic_load(&c->taken) && !atomic_exchange(&c->taken, true))
			return c;
	struct caller *c = aligned_alloc(_Alignof(struct caller), sizeof *c);
	if (!c)
		return NULL;
	*c = (struct caller){.taken = true, .next = atomic_load(&callers)};
	while (!atomic_compare_exchange_weak(&callers, &c->next, c))
		;
	return c;
}

/* Sets `own`, on a thread that has none. */
static void join(void)
{
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_once(&once, make_key);
	struct caller *c = has_key ? take() : NULL;
	if (c && pthread_setspecific(key, c)) {
		atomic_store(&c->taken, false);
		c = NULL;
	}
	own = c ? c : &others;
	pthread_setcancelstate(state, NULL);
}

void hami_hold_enter(enum hami_hold what)
{
	if (passes || !atomic_load_explicit(&counts, memory_order_relaxed))
		return;
	if (!own)
		join();
	for (;;) {
		atomic_fetch_add(&own->inside[what], 1);
		if (!atomic_load(&closed[what]))
			return;
		atomic_fetch_add(&own->waiting[what], 1);
		atomic_fetch_sub(&own->inside[what], 1);
		syscall(SYS_futex, &closed[what], FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
		atomic_fetch_sub(&own->waiting[what], 1);
	}
}

void hami_hold_leave(enum hami_hold what)
{
	if (own && atomic_load_explicit(&own->inside[what], memory_order_relaxed))
		atomic_fetch_sub(&own->inside[what], 1);
}

static bool anybody_inside(enum hami_hold what)
{
	for (struct caller *c = atomic_load(&callers); c; c = c->next)
		if (atomic_load(&c->inside[what]))
			return true;
	return false;
}

bool hami_hold_close(enum hami_hold what, int64_t most)
{
	const int64_t end = hami_clock_steady() + most;
	atomic_store(&closed[what], 1);
	while (anybody_inside(what)) {
		if (hami_clock_steady() >= end) {
			hami_hold_open(what);
			return false;
		}
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
	}
	return true;
}

void hami_hold_open(enum hami_hold what)
{
	atomic_store(&closed[what], 0);
	syscall(SYS_futex, &closed[what], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool hami_hold_waits(enum hami_hold what)
{
	for (struct caller *c = atomic_load(&callers); c; c = c->next)
		if (atomic_load(&c->waiting[what]))
			return true;
	return false;
}

void hami_hold_forked(void)
{
	if (passes)
		passes = false;
	for (struct caller *c = atomic_load(&callers); c; c = c->next) {
		clear(c);
		if (c != own && atomic_load(&c->taken))
			atomic_store(&c->taken, false);
	}
	for (int i = 0; i < HAMI_HOLDS; i++)
		if (atomic_load(&closed[i]))
			atomic_store(&closed[i], 0);
}
