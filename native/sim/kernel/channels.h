/* SPDX-License-Identifier: Apache-2.0 */
/* Compute channels as objects of this process, and the control that disables anybody's. */
#ifndef SIM_KERNEL_CHANNELS_H
#define SIM_KERNEL_CHANNELS_H
#include "objects.h"

/* Every function: with the kernel's mutex held. Statuses are RM's. */

/* Notes object in the state if it is a compute channel. One that is not disabled resumes its group. */
uint32_t channels_add(struct sim_view *view, struct object *object);
/* Takes a compute channel out of the state; channels_settle() after the last one. */
void channels_remove(struct sim_view *view, const struct object *channel);
void channels_settle(struct sim_view *view);
/* RM_DISABLE_CHANNELS: all that are named, or none. *effect is when the caller gets its answer. */
uint32_t channels_disable(struct sim_view *view, const struct object *subdevice, const struct rm_control *c,
			  uint64_t *effect);
struct rm_sim_channels channels_sums(struct sim_view *view, uint32_t gpu);
#endif
