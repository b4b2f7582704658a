/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, as the simulated kernel gives it: charged to the process in the state. */
#ifndef SIM_KERNEL_MEMORY_H
#define SIM_KERNEL_MEMORY_H
#include "objects.h"

/* With the kernel's mutex held. Statuses are RM's. */
uint32_t memory_allocate(struct sim_view *view, int fd, struct rm_alloc *request);
/* Does what RM_ALLOC does, for the functions of RM_HEAP that allocate. */
uint32_t memory_heap(struct sim_view *view, int fd, struct rm_heap *request);
/* A handle by which other GPUs reach memory. */
uint32_t memory_fabric(int fd, struct rm_alloc *request);
/* A second handle for memory, or for a group, as clients of an MPS server have one. */
uint32_t memory_dup(int fd, struct rm_dup *request);
/* Answers RM_SIM_SHARE. */
uint32_t memory_share(const struct object *object, const struct rm_control *request);
/* Nobody holds it any more. */
void memory_give(struct sim_view *view, const struct memory *memory);

#endif
