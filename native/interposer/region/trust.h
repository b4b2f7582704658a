/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells whether a file is root's, by what the kernel says and the user cannot change. That includes user
 * namespaces, where root's files show the overflow id, or any other that the user arranged. Opens files below
 * /proc. No lock, so no fork handler; thread-safe, not async-signal-safe.
 *
 * Inside a user namespace it cannot tell root's files from those of another account that works with the user
 * (a second user's, or one of the ids that /etc/subuid lends).
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

/*
 * Fills *viewer. 0, or -EPERM where it cannot be told who this process is: no /proc, or a user namespace
 * whose map lacks this user.
 */
int hami_viewer_read(struct hami_viewer *viewer);
/* Returns 0 when only root can write the open file or directory, else -EPERM. */
int hami_viewer_trusts(const struct hami_viewer *viewer, int fd);
/* Returns whether a record of user `uid` is this process's. */
bool hami_viewer_is(const struct hami_viewer *viewer, uint32_t uid);

#endif
