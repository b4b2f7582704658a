/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#include "../core/channels.h"

#include <string.h>

/* A channel that is not disabled joins. */
uint32_t channels_add(struct sim_view *view, struct object *o)
{
	if (!object_is_channel(o) || !o->compute)
		return RM_OK;
	sim_lock(view);
	o->slot = o->above->slot;
	o->channel = sim_channel_add(view, o->slot, o->gpu, o->client, o->handle);
	if (o->channel != SIM_NO_SLOT)
		sim_channels_apply(view, o->slot, o->gpu);
	sim_unlock(view);
	return o->channel == SIM_NO_SLOT ? RM_INSUFFICIENT_RESOURCES : RM_OK;
}

/* With the shared mutex held. */
static uint32_t check_channel(struct sim_view *view, uint32_t client, uint32_t handle, uint32_t gpu)
{
	uint32_t slot;
	const struct object *mine = objects_find_any(client, handle);
	if (mine)
		return object_is_channel(mine) && mine->gpu == gpu ? RM_OK : RM_INVALID_OBJECT_HANDLE;
	if (objects_find_any(client, client))
		return RM_INVALID_OBJECT_HANDLE;
	sim_sweep(view);
	const struct sim_channel *other = sim_channel_find(view, client, handle, &slot);
	return other && other->gpu == gpu ? RM_OK : RM_INVALID_CHANNEL;
}

/* With the shared mutex held. All of them, or none. Returns a status. */
static uint32_t disable_all(struct sim_view *view, const struct rm_disable_channels *p, uint32_t gpu,
			    uint64_t *effect)
{
	uint32_t slot;
	for (uint32_t i = 0; i < p->count; i++) {
		uint32_t status = check_channel(view, p->clients[i], p->channels[i], gpu);
		if (status != RM_OK)
			return status;
	}
	for (uint32_t i = 0; i < p->count; i++) {
		struct sim_channel *c = sim_channel_find(view, p->clients[i], p->channels[i], &slot);
		if (c) /* else a copy engine's */
			sim_channel_disable(view, slot, c, p->disable);
	}
	for (uint32_t i = 0; i < p->count; i++) {
		if (!sim_channel_find(view, p->clients[i], p->channels[i], &slot))
			continue;
		uint64_t at = sim_channels_apply(view, slot, gpu);
		if (at)
			*effect = at;
	}
	return RM_OK;
}

uint32_t channels_disable(struct sim_view *view, const struct object *subdevice, const struct rm_control *c,
			  uint64_t *effect)
{
	struct rm_disable_channels p;
	if (subdevice->class_id != RM_CLASS_SUBDEVICE || c->size != sizeof p || !c->params)
		return RM_INVALID_ARGUMENT;
	memcpy(&p, (const void *)(uintptr_t)c->params, sizeof p);
	if (!p.count || p.count > RM_CHANNELS_PER_CONTROL)
		return RM_INVALID_ARGUMENT;
	sim_lock(view);
	uint32_t status = disable_all(view, &p, subdevice->gpu, effect);
	sim_unlock(view);
	if (status == RM_OK && p.disable && p.only_scheduling)
		*effect = SIM_NEVER;
	return status;
}

struct rm_sim_channels channels_sums(struct sim_view *view, uint32_t gpu)
{
	struct rm_sim_channels sums = objects_groups(gpu);
	sim_lock(view);
	for (uint32_t i = sim_bit_next(view->state->live, 0); i != SIM_NO_SLOT;
	     i = sim_bit_next(view->state->live, i + 1)) {
		const struct sim_slot *slot = &view->state->slot[i];
		sums.channels += slot->owner == view->slot ? slot->gpu[gpu].channels : 0;
		sums.disabled += slot->owner == view->slot ? slot->gpu[gpu].disabled : 0;
	}
	sim_unlock(view);
	return sums;
}

void channels_remove(struct sim_view *view, const struct object *o)
{
	sim_lock(view);
	sim_channel_remove(view, o->slot, o->channel);
	sim_unlock(view);
}

void channels_settle(struct sim_view *view)
{
	if (view->slot == SIM_NO_SLOT)
		return;
	sim_lock(view);
	for (uint32_t i = sim_bit_next(view->state->live, 0); i != SIM_NO_SLOT;
	     i = sim_bit_next(view->state->live, i + 1))
		for (uint32_t g = 0; view->state->slot[i].owner == view->slot && g < view->machine.gpu_count;
		     g++)
			sim_channels_apply(view, i, g);
	sim_unlock(view);
}
