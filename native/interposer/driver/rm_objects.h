/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resource manager's objects of this process that matter for pausing, as a tree below each client, found
 * by handle whatever their number. Memory objects are in the table (base/table.h), by the same keys.
 *
 * Thread-safe, not async-signal-safe: one lock, never held over an ioctl; the table's locks are taken inside
 * it. A forked child starts with none: its descriptors are the parent's clients.
 */
#ifndef HAMI_RM_OBJECTS_H
#define HAMI_RM_OBJECTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Adds the object. `fd` owns the client: controls must go through it. `engine`: a group's, 0 when unknown. */
void hami_objects_add(struct hami_object *object, int fd, uint32_t class_id, uint64_t parent, uint64_t key,
		      uint32_t engine);
/* Forgets the object and all below it. Returns the bytes that were charged for memory below it. */
uint64_t hami_objects_free(uint64_t key);

/*
 * Marks a group, or a channel, as at work on the compute engine: from now on it is paused with the others.
 * `surely`: whatever engine its group is for. True when it was not marked before.
 */
bool hami_objects_start(uint64_t key, bool surely);
/* Return how many groups (and channels without one) are at work; how many ever were. */
int hami_objects_started(void);
unsigned int hami_objects_started_ever(void);

/* Where a control goes, and what it names: a channel or a group. */
struct hami_target {
	int fd;
	uint32_t client, subdevice, object;
};
/*
 * Return all channels, or all groups, at work; NULL with *count 0 when there is none, -1 when memory cannot
 * be had. Those that one control may name together are neighbours in the list. The caller frees it.
 */
struct hami_target *hami_objects_channels(long *count);
struct hami_target *hami_objects_groups(long *count);

/* In a forked child: forgets all objects, whose lock another thread may have held. */
void hami_objects_forked(void);

#endif
