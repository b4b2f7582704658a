/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of include/hami_hpc.h: requests that the program marks itself. One for each thread; no lock. */
#ifndef HAMI_HINT_H
#define HAMI_HINT_H

/* In a forked child. */
void hami_hint_forked(void);

#endif
