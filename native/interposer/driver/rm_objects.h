/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resource manager's objects of this process that matter for pausing, as a tree below each client, found
 * by handle whatever their number. Memory objects are in the table (base/table.h), by the same keys.
 * A device is on the GPU of a slice, and so is all below it.
 *
 * Thread-safe, not async-signal-safe: one lock, never held over an ioctl; the table's locks are taken inside
 * it. A forked child starts with none: its descriptors are the parent's clients.
 */
#ifndef HAMI_RM_OBJECTS_H
#define HAMI_RM_OBJECTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/table.h"

struct hami_object;

static inline uint64_t hami_object_key(uint32_t client, uint32_t handle)
{
	return (uint64_t)client << 32 | handle;
}

/* Return whether objects of this class are kept here; are clients; carry the GPU's work. */
bool hami_objects_keep(uint32_t class_id);
bool hami_objects_is_client(uint32_t class_id);
bool hami_objects_is_work(uint32_t class_id);
/* Makes room for one; NULL when memory cannot be had. Give it to hami_objects_add() or hami_object_drop(). */
struct hami_object *hami_object_new(void);
void hami_object_drop(struct hami_object *object);

/*
 * A second handle of an object, whose class is not told. One that channels are made below is a group. A client of an MPS
 * server has its channels below a handle of the server's group, which all clients share: each of these channels is at
 * work, and paused, by itself, and the timeslice is set by that handle.
 */
enum hami_duplicate { HAMI_NO_DUPLICATE, HAMI_DUPLICATE, HAMI_DUPLICATE_OF_SERVER };

/* What there is to know of a new object. */
struct hami_made {
	enum hami_duplicate duplicate; /* class_id is not known then */
	int fd;                        /* owns the client: controls must go through it */
	uint32_t class_id;
	uint32_t engine; /* a group's; 0 when unknown */
	int slice;       /* a device's; -1: on no slice's GPU */
	uint64_t parent, key;
	uint64_t context; /* a group's: the number of the context that is being made; 0: not known */
};
void hami_objects_add(struct hami_object *object, const struct hami_made *made);
/* Forgets the object and all below it. Sets *sums to what was charged for memory below it. */
void hami_objects_free(uint64_t key, struct hami_sums *sums);
/* Returns the slice of the device that the object is, or lies below; -1 where there is none, or it is not known. */
int hami_objects_slice(uint64_t key);

/*
 * Marks a group, or a channel, as at work on the compute engine: from now on it is paused with the others. A group of a copy
 * engine is marked as one that copies, and not paused.
 * `surely`: whatever engine its group is for. Returns its slice when it was not marked before, else -1.
 */
int hami_objects_start(uint64_t key, bool surely);
/* Return how many groups (and channels without one) of a slice are at work; how many ever were. */
int hami_objects_started(unsigned int slice);
unsigned int hami_objects_started_ever(unsigned int slice);
/* Returns how many groups of a slice that copy there ever were. */
unsigned int hami_objects_copying_ever(unsigned int slice);

/* Where a control goes, and what it names: a channel or a group. */
struct hami_target {
	int fd;
	uint32_t client, subdevice, object;
	uint64_t context; /* whose it is, as it was made */
};
/* Returns whether a group that is at work belongs to this context. */
bool hami_objects_of_context(unsigned int slice, uint64_t context);
/*
 * Return all channels that can be paused, or all groups, of a slice at work; NULL with *count 0 when there is none, -1 when memory cannot
 * be had. Those that one control may name together are neighbours in the list. The caller frees it.
 */
struct hami_target *hami_objects_channels(unsigned int slice, long *count);
struct hami_target *hami_objects_groups(unsigned int slice, long *count);
/* The same for the groups that copy: between GPU and host, or within. */
struct hami_target *hami_objects_copying(unsigned int slice, long *count);

/* In a forked child: forgets all objects, whose lock another thread may have held. */
void hami_objects_forked(void);

#endif
