/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file without a name to which device memory goes that leaves the GPU, where HAMI_HPC_SWAP_DIR names a directory. It is
 * mapped and has no descriptor, which the program could close or take for its own. Whatever the disk refuses is an error of
 * a call here: a fault of a mapped file is a signal that ends the program (SIGBUS), so only the kernel touches the mapping.
 *
 * One thread but for the copies. Not async-signal-safe.
 */
#ifndef HAMI_SWAP_FILE_H
#define HAMI_SWAP_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Before anything moves: reads the environment, which the program may be changing later. */
void hami_swap_file_begin(void);
/* Returns whether memory goes to a file. */
bool hami_swap_file_wanted(void);

/* Returns how many bytes there are for one. */
uint64_t hami_swap_file_room(void);
/* Returns a new one, mapped, whose blocks are all its own; NULL: the reason was said. */
char *hami_swap_file_map(size_t bytes);

/* Copy from, or to, a place in the file. False: the disk failed, or it is full though the blocks were reserved. */
bool hami_swap_file_read(void *to, const char *from, size_t bytes);
bool hami_swap_file_write(char *to, const void *from, size_t bytes);
/*
 * Returns whether the disk took all that the kernel has written there so far. What it did not take may read as something
 * else, so this is asked after the last read.
 */
bool hami_swap_file_intact(char *file);

#endif
