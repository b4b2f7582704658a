/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MPS_CONTROL_H
#define SIM_MPS_CONTROL_H
#include <stdbool.h>

#include "mps.h"

/* The pipe directory. */
const char *mps_pipe(void);

/* Hangs or ends the process if a fault of that command is wanted. */
void mps_fault(const char *command);

/* Returns whether the command is to be refused. */
bool mps_refused(const char *command);

/* Becomes the daemon. Returns an exit status: in the caller 0 once the daemon listens, else 1. */
int daemon_run(int multi_user, int is_static);
#endif
