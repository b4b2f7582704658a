/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_VMM_H
#define SIM_VMM_H
#include "memory.h"

/* What a CUmemGenericAllocationHandle points to. */
struct physical {
	struct physical *next;
	uint64_t id;
	uint64_t bytes;
	uint32_t gpu;
	struct device_memory memory; /* not of what is imported */
	int fd;
	unsigned references; /* handles not yet released, and mappings */
	bool imported;       /* another process asked the kernel for it */
	bool shared;         /* in the shared table: others may hold it too */
	CUmemAllocationProp properties;
};

struct mapping {
	struct mapping *next;
	struct region *region;
	uintptr_t address;
	size_t bytes;
	struct physical *physical;
	bool accessible;
};

/* With sim.lock held. */
struct physical *vmm_find(CUmemGenericAllocationHandle handle);
/* One reference less; the memory goes with the last. */
void vmm_release(struct physical *physical);
void vmm_map_fork_child(void);
#endif
