/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/ending.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/table.h"

#define MOST_NS 20000000ll

enum { RESTS, WORKS, GONE };

static struct ending {
	_Atomic int keeper;
	_Atomic uint32_t asked, counted; /* futexes: the keeper's and exit()'s */
} endings[HAMI_SLICES];

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

void hami_ending_works(unsigned int slice, bool works)
{
	atomic_store(&endings[slice].keeper, works ? WORKS : RESTS);
}

void hami_ending_woken(unsigned int slice)
{
	int rests = RESTS;
	atomic_compare_exchange_strong(&endings[slice].keeper, &rests, WORKS);
}

void hami_ending_gone(unsigned int slice)
{
	atomic_store(&endings[slice].keeper, GONE);
}

bool hami_ending_sleep(unsigned int slice, int64_t ns)
{
	struct ending *ending = &endings[slice];
	if (!atomic_load(&ending->counted)) {
		wait(&ending->asked, ns);
		return atomic_load(&ending->asked);
	}
	struct timespec t = {.tv_sec = ns / HAMI_NS_PER_S, .tv_nsec = ns % HAMI_NS_PER_S};
	nanosleep(&t, NULL);
	return false;
}

void hami_ending_counted(unsigned int slice)
{
	set(&endings[slice].counted);
}

void hami_ending(void)
{
	uint32_t waited_for = 0;
	const int64_t end = hami_clock_steady() + MOST_NS;
	for (unsigned int i = 0; i < HAMI_SLICES; i++)
		if (atomic_load(&endings[i].keeper) == WORKS) {
			set(&endings[i].asked);
			waited_for |= 1u << i;
		}
	for (unsigned int i = 0; waited_for >> i; i++)
		if (waited_for >> i & 1)
			wait(&endings[i].counted, end - hami_clock_steady());
}

void hami_ending_forked(void)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		struct ending *ending = &endings[i];
		if (atomic_load(&ending->keeper) == RESTS && !atomic_load(&ending->asked))
			continue;
		atomic_store(&ending->keeper, RESTS);
		atomic_store(&ending->asked, 0);
		atomic_store(&ending->counted, 0);
	}
}
