// SPDX-License-Identifier: GPL-2.0-or-later
/* Runs a program of root's from a daemon of Slurm, with nothing of a user's around it. */
#ifndef HAMI_PROGRAM_H
#define HAMI_PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

/*
 * Runs argv[0], which must be a file of root that only root can write, as root, and waits for it, `seconds` at most; then
 * it and its process group are killed. Its environment: PATH, and this process's SLURMD_NODENAME and SLURM_CONF; its
 * standard input is empty, its directory /.
 *
 * Returns 0 when it ends with status 0, with the first line that it printed in line[size]; else -1, with that line or with
 * what is wrong. Thread-safe. The caller must not wait for children of others, nor ignore SIGCHLD.
 */
int program_run(const char *const argv[], int seconds, char *line, size_t size);

/*
 * Starts it likewise and does not wait: it is the caller's child. Returns its process id, and in *input what the caller can
 * write to its standard input; or -1, with what is wrong in line[size].
 */
pid_t program_start(const char *const argv[], int *input, char *line, size_t size);

#endif
