/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated kernel's objects: this process's. Of others' a process may name the compute channels, which are
 * in the state (core/channels.h). One mutex guards them.
 */
#ifndef SIM_KERNEL_OBJECTS_H
#define SIM_KERNEL_OBJECTS_H
#include "../core/sim_rm.h"
#include "../core/state.h"

struct place;

/* Device memory; several objects may hold it. */
struct memory {
	uint64_t bytes;
	uint32_t gpu, holders;
	uint32_t slot; /* that is charged for it */
	uint64_t
		shared_id; /* its row in the state's table of shared allocations, which is charged then; or 0 */
	struct place *places; /* where it is mapped, or was (uvm.c) */
};

#define SIM_COPY_TIMESLICE_US                                                                                \
	1000u /* of a group that copies, until it is set: nothing takes it into account */

struct object {
	uint32_t client, parent, handle, class_id;
	uint32_t gpu;           /* of everything below a device */
	int fd;                 /* of the client: controls go through it */
	bool compute;           /* a compute group, or a channel of one */
	uint32_t slot, channel; /* where a compute channel is in the state; of a group the slot alone */
	uint32_t timeslice_us;  /* a group's; of a compute group once it was set */
	struct memory *memory;  /* what a memory object holds; NULL: none of the device's */
	struct pages *pages;    /* what a deviceless memory object holds (events.c) */
	struct event_buffer *events;
	struct object *chain, *above, *below, *next, **link; /* in the bucket, in the tree */
};

/* Every function: with the kernel's mutex held. Statuses are RM's. `parameter` is the class's own. */
uint32_t objects_add(const struct rm_alloc *request, int fd, uint32_t parameter, struct object **out);
/* Frees an object and everything below it; `gone` is told of compute channels and of last holders of memory. */
uint32_t objects_free(uint32_t client, uint32_t handle, int fd, void (*gone)(const struct object *object));
/* The object, if it is this client's and asked for through the client's descriptor. */
struct object *objects_find(uint32_t client, uint32_t handle, int fd);
/* The object whoever's descriptor it is. */
struct object *objects_find_any(uint32_t client, uint32_t handle);
/* The groups and timeslices of it. */
struct rm_sim_channels objects_groups(uint32_t gpu);
void objects_forget(void);

static inline bool object_is_channel(const struct object *o)
{
	return (o->class_id & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE && o->class_id > 0xff;
}

static inline bool class_is_of_events(uint32_t class_id)
{
	return class_id == RM_CLASS_DEVICELESS_MEMORY || class_id == RM_CLASS_EVENT_BUFFER;
}

static inline bool class_is_memory(uint32_t class_id)
{
	return class_id == RM_CLASS_DEVICE_MEMORY || class_id == RM_CLASS_HOST_MEMORY ||
	       class_id == RM_CLASS_VIRTUAL_MEMORY || class_id == RM_CLASS_FABRIC;
}
#endif
