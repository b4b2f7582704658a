/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated kernel's objects: those of this process, which is all that it may name. One mutex guards
 * them. */
#ifndef SIM_KERNEL_OBJECTS_H
#define SIM_KERNEL_OBJECTS_H
#include "../core/rm_abi.h"
#include "../core/state.h"

struct object {
	uint32_t client, parent, handle, class_id;
	uint32_t gpu; /* of everything below a device */
	int fd;       /* of the client: controls go through it */
	bool compute; /* a compute group, or a channel of one */
	bool disabled;
};

/* Every function: with the kernel's mutex held. Statuses are RM's. */
uint32_t objects_add(const struct rm_alloc *request, int fd, uint32_t parameter, struct object **out);
/* Frees an object and everything below it. */
uint32_t objects_free(uint32_t client, uint32_t handle, int fd);
/* The object, if it is this client's and asked for through the client's descriptor. */
struct object *objects_find(uint32_t client, uint32_t handle, int fd);
/* True when the process has compute channels on gpu and all of them are disabled. */
bool objects_all_disabled(uint32_t gpu);
void objects_forget(void);

static inline bool object_is_channel(const struct object *o)
{
	return (o->class_id & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE && o->class_id > 0xff;
}
#endif
