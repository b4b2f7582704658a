/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints of services to hami_hpc: when a request begins and ends, how long it should take, and that it comes soon.
 *
 *	#include <hami_hpc.h>
 *
 *	hami_hint_begin(10000);   // 10 ms
 *	...                       // what the CPU does first
 *	hami_hint_soon();         // 0.3 to 0.9 ms before the first launch
 *	...                       // launches and copies, and waits for the result
 *	hami_hint_end();
 *
 * Nothing has to be linked: the functions look for the library that a vGPU job has loaded, and do nothing outside of
 * one. (glibc before 2.34 needs -ldl.)
 *
 * A request belongs to the thread that began it; each thread can have one at a time. From a process's first hint on,
 * hami_hpc does not measure its requests in any other way. hami_hint_begin() and hami_hint_end() do not call the driver
 * or wait.
 * Thread-safe, not async-signal-safe. A forked child has no request under way.
 */
#ifndef HAMI_HPC_H
#define HAMI_HPC_H
#include <errno.h>
#include <stdint.h>

#ifdef HAMI_HPC_INTERPOSER /* the library itself */

int hami_hint_begin(uint64_t deadline_us);
int hami_hint_end(void);
int hami_hint_soon(void);

#else
#include <dlfcn.h>
#include <stddef.h>

/* Calls a function of the loaded library that takes nothing. */
static inline int hami_hint_call_(const char *name)
{
	union {
		void *symbol;
		int (*function)(void);
	} found;
	found.symbol = dlsym(NULL /* RTLD_DEFAULT */, name);
	return found.symbol ? found.function() : -ENOSYS;
}

/*
 * A request begins. It should take at most `deadline_us` microseconds; 0: at most what the job asked for with slo=.
 * Returns 0; -EBUSY when this thread has one under way, which goes on; -ENOSYS outside of a vGPU job.
 */
static inline int hami_hint_begin(uint64_t deadline_us)
{
	union {
		void *symbol;
		int (*begin)(uint64_t);
	} found;
	found.symbol = dlsym(NULL /* RTLD_DEFAULT */, "hami_hint_begin");
	return found.symbol ? found.begin(deadline_us) : -ENOSYS;
}

/*
 * The request ends: its time is counted, and whether it was too long. Returns 0; -EINVAL when this thread has none
 * under way; -ENOSYS outside of a vGPU job.
 */
static inline int hami_hint_end(void)
{
	return hami_hint_call_("hami_hint_end");
}

/*
 * This thread launches something in its current context in 0.3 to 0.9 ms. Where others on the GPU have to give way to the
 * job, the GPU is taken from them now, which takes 0.2 ms that the request would wait for, until the launch begins, or for
 * 1 ms; in programs of other classes, and without a context, nothing is done. Measured in docs/benchmarks/time.md,
 * "Run 13". Its first call in a context takes some milliseconds, others two launches.
 * Returns 0; -ENOSYS outside of a vGPU job.
 */
static inline int hami_hint_soon(void)
{
	return hami_hint_call_("hami_hint_soon");
}

#endif
#endif
