/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's compute channels. They are in the state because any process may disable any other's. Every
 * function: with the shared mutex held.
 */
#ifndef SIM_CHANNELS_H
#define SIM_CHANNELS_H
#include "state.h"

/* A client handle that no process of this machine has had; `base` is below all of them. */
uint32_t sim_new_client(struct sim_view *view, uint32_t base);

/* Notes a channel of a line of this process. Its index there, or SIM_NO_SLOT when there is no room. */
uint32_t sim_channel_add(struct sim_view *view, uint32_t line, uint32_t gpu, uint32_t client,
			 uint32_t handle);
void sim_channel_remove(struct sim_view *view, uint32_t slot, uint32_t index);

/* The channel, whosever it is; *slot is that of its line. NULL: none of a living process. */
struct sim_channel *sim_channel_find(struct sim_view *view, uint32_t client, uint32_t handle, uint32_t *slot);
void sim_channel_disable(struct sim_view *view, uint32_t slot, struct sim_channel *channel, bool disabled);

/*
 * Pauses or resumes the line on gpu if its channels say otherwise than before. Returns when that takes
 * effect (CLOCK_MONOTONIC ns), or 0 for no change.
 */
uint64_t sim_channels_apply(struct sim_view *view, uint32_t slot, uint32_t gpu);

/* The sums of slot again, after a holder of the mutex died at any line. */
void sim_channels_count(struct sim_slot *slot);
#endif
