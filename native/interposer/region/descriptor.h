/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor of the usage file, for the locks of slots. It is one of the program's descriptors, and the program may
 * close it, or give its number to another file: so it is asked for at each use. The locks themselves stay, whatever
 * the program closes, as what they were taken by is mapped too (ADR 106).
 */
#ifndef HAMI_REGION_DESCRIPTOR_H
#define HAMI_REGION_DESCRIPTOR_H
#include <sys/types.h>

struct hami_descriptor {
	char path[256];
	int fd; /* by hami_descriptor() alone; -1 after fork */
	dev_t device;
	ino_t inode;
};

/*
 * Opens file->path for the first time, above the standard streams, which a program may have closed and would
 * write to. Returns the descriptor, or -errno. The caller maps it.
 */
int hami_descriptor_open(const struct hami_descriptor *file);

/* Takes `fd`, and its file for the one that later descriptors must be of. Returns 0 or -errno. */
int hami_descriptor_adopt(struct hami_descriptor *file, int fd);

/*
 * Returns a descriptor of the file, opened anew in a forked child and where the program took the last one;
 * or -errno: -ESTALE when another file is at that path now.
 */
int hami_descriptor(struct hami_descriptor *file);

#endif
