/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated /dev/nvidia-uvm: where this process's device memory is mapped. Device memory is the process's own
 * address space (cuda/memory.h), whose pages stand for it. While an object is not mapped nobody can touch its pages;
 * when it is freed they are dropped. Other than in NVIDIA's driver a mapping does not keep an object's memory: with
 * RM_FREE of the object it goes.
 */
#ifndef SIM_KERNEL_UVM_H
#define SIM_KERNEL_UVM_H
#include "../../include/uvm_abi.h"
#include "objects.h"

bool uvm_is_request(unsigned long request);

/* The rest: with the kernel's mutex held. Writes the status into the request. */
void uvm_answer(struct sim_view *view, int fd, unsigned long request, void *argument);
/* An object goes, and its memory with it if it was the last that held it. */
void uvm_object_freed(const struct object *object, bool last);
void uvm_forget(void);

#endif
