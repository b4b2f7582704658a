/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event buffers of context switches, and the memory that they lie in. The state keeps the last SIM_SWITCHES
 * switches of each GPU; a flush copies what a buffer has not had yet. Nothing is copied at any other time,
 * where the driver does it every 33 ms too.
 */
#ifndef SIM_KERNEL_EVENTS_H
#define SIM_KERNEL_EVENTS_H
#include "objects.h"

/* Every function: with the kernel's mutex held. Statuses are RM's. */

/* Makes an object of a class of class_is_of_events. */
uint32_t events_allocate(int fd, struct rm_alloc *request);
/* Puts the memory in the place of what request->fd is open on, which is a control file. */
uint32_t events_map(int fd, const struct rm_map *request);
uint32_t events_bind(struct sim_view *view, const struct object *subdevice, const struct rm_control *c);
uint32_t events_enable(struct sim_view *view, const struct object *buffer, const struct rm_control *c);
uint32_t events_update_get(const struct object *buffer, const struct rm_control *c);
uint32_t events_flush(struct sim_view *view, const struct object *buffer);
/* The object goes: so does what it holds of events. */
void events_free(struct object *object);
/* In a forked child, which has none of it. */
void events_forget(void);
#endif
