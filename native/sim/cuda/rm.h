/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcuda asks of the kernel, through libc's `ioctl`, so that an interposer sees it. Where no simulated kernel
 * answers (libhami-sim-kernel.so is not preloaded) there is no client, and libcuda does without.
 */
#ifndef SIM_CUDA_RM_H
#define SIM_CUDA_RM_H
#include "../../include/uvm_abi.h"
#include "../core/machine.h"
#include "../core/sim_rm.h"

#include <pthread.h>
#include <stdbool.h>

struct rm_client {
	pthread_mutex_t lock; /* of all here; taken inside sim.lock, and before the shared state's mutex */
	int fd, uvm_fd;
	bool absent; /* nobody answers */
	uint32_t handle, objects;
	uint32_t memory_device[SIM_MAX_GPUS]; /* what each GPU's memory is below */
	uint32_t memories;                    /* how many there ever were */
};

extern struct rm_client rm;

/* With the mutex held. False when nobody answers. */
bool rm_open(void);
/* With the mutex held: an object, with a handle of libcuda's choice. */
bool rm_allocate(uint32_t parent, uint32_t *object, uint32_t class_id, uint32_t parameter);
bool rm_allocate_group(uint32_t device, uint32_t *object, uint32_t engine, uint32_t line);
bool rm_allocate_device(uint32_t gpu, uint32_t *object);
/* The rest needs no mutex: the client is open, and stays so. */
void rm_unmake(uint32_t parent, uint32_t object);
uint32_t rm_ask(uint32_t object, uint32_t command, void *params, uint32_t size);

#endif
