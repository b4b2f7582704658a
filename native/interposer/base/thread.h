/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the interposer's own, beside the application's. No state. Thread-safe, not async-signal-safe. */
#ifndef HAMI_THREAD_H
#define HAMI_THREAD_H

/*
 * Starts a detached thread that runs run(argument), gets none of the application's signals, and has room for calls
 * into libcuda and NVML. Returns 0 or an error number.
 */
int hami_thread(void *(*run)(void *), void *argument);

#endif
