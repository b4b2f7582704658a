/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cap of a slice where the driver does not let a process pause its channels: a budget of GPU time grows with the
 * clock at cores %, and the measured completion of launches uses it up.
 *
 * A lock for each slice, held while this process waits for its own events: threads of a gated process launch one
 * after the other on that GPU. No thread holds two. Thread-safe, not async-signal-safe. In a forked child the gate is open until the child gates itself.
 */
#ifndef HAMI_GATE_H
#define HAMI_GATE_H
#include <stdbool.h>
#include <stdint.h>

/* Starts the budget. Its percentage is read at each launch. */
void hami_gate_open(unsigned int slice);
/* Waits until a launch on `stream` fits the budget; `per_thread` for the _ptsz forms. */
void hami_gate_pass(unsigned int slice, void *stream, bool per_thread);
/* After that launch. */
void hami_gate_launched(unsigned int slice, void *stream, bool per_thread);
/* Before what may end a context (hami_known_owner()), and once it is `gone`. */
void hami_gate_end_context(uint64_t owner, bool gone);
/* In a forked child. */
void hami_gate_forked(void);

#endif
