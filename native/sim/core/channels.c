/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#include "timeline.h"

uint32_t sim_new_client(struct sim_view *v, uint32_t base)
{
	return base + ++v->state->clients;
}

uint32_t sim_channel_add(struct sim_view *v, uint32_t line, uint32_t gpu, uint32_t client, uint32_t handle)
{
	struct sim_slot *slot = &v->state->slot[line];
	uint32_t i = 0;
	while (i < slot->channels && slot->channel[i].client)
		i++;
	if (i == SIM_SLOT_CHANNELS)
		return SIM_NO_SLOT;
	if (i == slot->channels)
		slot->channels++;
	slot->channel[i] = (struct sim_channel){.client = client, .handle = handle, .gpu = (uint16_t)gpu};
	slot->gpu[gpu].channels++;
	return i;
}

void sim_channel_disable(struct sim_view *v, uint32_t index, struct sim_channel *channel, bool disabled)
{
	if (channel->disabled != disabled)
		v->state->slot[index].gpu[channel->gpu].disabled += disabled ? 1u : -1u;
	channel->disabled = disabled;
}

void sim_channel_remove(struct sim_view *v, uint32_t index, uint32_t i)
{
	struct sim_slot *slot = &v->state->slot[index];
	sim_channel_disable(v, index, &slot->channel[i], false);
	slot->gpu[slot->channel[i].gpu].channels--;
	slot->channel[i].client = 0;
}

static struct sim_channel *find_in(struct sim_slot *slot, uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; i < slot->channels; i++)
		if (slot->channel[i].client == client && slot->channel[i].handle == handle)
			return &slot->channel[i];
	return NULL;
}

struct sim_channel *sim_channel_find(struct sim_view *v, uint32_t client, uint32_t handle, uint32_t *slot)
{
	struct sim_channel *channel = NULL;
	if (v->slot != SIM_NO_SLOT && (channel = find_in(&v->state->slot[v->slot], client, handle))) {
		*slot = v->slot;
		return channel;
	}
	for (uint32_t i = sim_bit_next(v->state->live, 0); i != SIM_NO_SLOT && !channel;
	     i = sim_bit_next(v->state->live, i + 1)) {
		channel = find_in(&v->state->slot[i], client, handle);
		*slot = i;
	}
	return channel;
}

uint64_t sim_channels_apply(struct sim_view *v, uint32_t slot, uint32_t gpu)
{
	struct sim_share *share = &v->state->slot[slot].gpu[gpu];
	const struct sim_model *m = &v->machine.gpu[gpu];
	bool all = share->channels > 0 && share->disabled == share->channels;
	if (all == share->held)
		return 0;
	share->held = all;
	uint64_t at = timeline_now() + (all ? m->pause_us : m->resume_us) * 1000ull;
	if (all)
		timeline_pause(v, slot, gpu, at);
	else
		timeline_resume(v, slot, gpu, at);
	return at;
}

void sim_channels_count(struct sim_slot *slot)
{
	for (uint32_t g = 0; g < SIM_MAX_GPUS; g++)
		slot->gpu[g].channels = slot->gpu[g].disabled = 0;
	for (uint32_t i = 0; i < slot->channels; i++) {
		struct sim_share *share = &slot->gpu[slot->channel[i].gpu];
		share->channels += slot->channel[i].client != 0;
		share->disabled += slot->channel[i].client && slot->channel[i].disabled;
	}
}
