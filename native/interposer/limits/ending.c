/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/ending.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define MOST_NS 20000000ll

enum { RESTS, WORKS, GONE };

static struct {
	_Atomic int keeper;
	_Atomic uint32_t asked, counted; /* futexes: the keeper's and exit()'s */
} ending;

/* Waits until *word is 1, at most `ns`. */
static void wait(_Atomic uint32_t *word, int64_t ns)
{
	const int64_t end = hami_clock_steady() + ns;
	for (; ns > 0 && !atomic_load(word); ns = end - hami_clock_steady()) {
		struct timespec t = {.tv_sec = ns / HAMI_NS_PER_S, .tv_nsec = ns % HAMI_NS_PER_S};
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
	}
}

static void set(_Atomic uint32_t *word)
{
	atomic_store(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void hami_ending_works(bool works)
{
	atomic_store(&ending.keeper, works ? WORKS : RESTS);
}

void hami_ending_woken(void)
{
	int rests = RESTS;
	atomic_compare_exchange_strong(&ending.keeper, &rests, WORKS);
}

void hami_ending_gone(void)
{
	atomic_store(&ending.keeper, GONE);
}

bool hami_ending_sleep(int64_t ns)
{
	if (!atomic_load(&ending.counted)) {
		wait(&ending.asked, ns);
		return atomic_load(&ending.asked);
	}
	struct timespec t = {.tv_sec = ns / HAMI_NS_PER_S, .tv_nsec = ns % HAMI_NS_PER_S};
	nanosleep(&t, NULL);
	return false;
}

void hami_ending_counted(void)
{
	set(&ending.counted);
}

void hami_ending(void)
{
	if (atomic_load(&ending.keeper) != WORKS)
		return;
	set(&ending.asked);
	wait(&ending.counted, MOST_NS);
}

void hami_ending_forked(void)
{
	if (atomic_load(&ending.keeper) == RESTS && !atomic_load(&ending.asked))
		return;
	atomic_store(&ending.keeper, RESTS);
	atomic_store(&ending.asked, 0);
	atomic_store(&ending.counted, 0);
}
