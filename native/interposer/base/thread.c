/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#define STACK_BYTES ((size_t)1 << 20)
#define STACK_UNIT ((size_t)1 << 16)

static int add_thread_local(struct dl_phdr_info *library, size_t size, void *sum)
{
	(void)size;
	for (size_t i = 0; i < library->dlpi_phnum; i++)
		if (library->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += library->dlpi_phdr[i].p_memsz + library->dlpi_phdr[i].p_align;
	return 0;
}

/* Returns the size of a stack. The C library takes the program's thread-local variables from it, which may be larger. */
static size_t stack_bytes(void)
{
	size_t thread_local_bytes = 0;
	dl_iterate_phdr(add_thread_local, &thread_local_bytes);
	return STACK_BYTES + (thread_local_bytes + STACK_UNIT - 1) / STACK_UNIT * STACK_UNIT;
}

int hami_thread(void *(*run)(void *), void *argument)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
	sigset_t all, before; /* the application's signals are not for this thread */
	pthread_t thread;
	pthread_attr_t attributes;
	sigfillset(&all);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&all, faults[i]); /* blocked, they end the process without its handler */
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, stack_bytes());
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&thread, &attributes, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return rc;
}
