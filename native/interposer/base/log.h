/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAMI_LOG_H
#define HAMI_LOG_H

/*
 * Writes one line to standard error when HAMI_HPC_LOG is at least `level`: 0 always, 1 what was set up, 2 each refused
 * request, 3 each fit of a timeslice. A line that its reader has no room for within a second is lost, and so are those after
 * it until he has; so is one where the program has put another file, that can be read too, in the place of its standard
 * error. Keeps errno. Takes no lock, so it needs no fork handler; not async-signal-safe.
 */
void hami_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
