/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a file is root's, by what the kernel says and the user cannot arrange; in a user namespace, where
 * root's files show the overflow id or, as the user may have arranged it, any other, included. Opens files
 * below /proc. Thread-safe, not async-signal-safe.
 *
 * What it cannot tell from root's inside a user namespace: files of another account that works with
 * the user (a second user's, or one of the ids that /etc/subuid lends).
 */
#ifndef HAMI_TRUST_H
#define HAMI_TRUST_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct hami_viewer {
	bool initial;     /* in the machine's own user namespace */
	bool own_root;    /* uid 0 here is another account than this process's: a node within a container */
	uint32_t uid;     /* of this process there; in another namespace as the namespace around it has it */
	uid_t shown_root; /* whom the machine's root's files seem to belong to */
};

/* Fills *viewer; 0, or -EPERM where nothing can be told: no /proc, or a namespace without this user in its
 * map. */
int hami_viewer_read(struct hami_viewer *viewer);
/* 0 when the open file or directory is root's alone to write, else -EPERM. */
int hami_viewer_trusts(const struct hami_viewer *viewer, int fd);
/* Whether a record of user `uid` is this process's. */
bool hami_viewer_is(const struct hami_viewer *viewer, uint32_t uid);

#endif
