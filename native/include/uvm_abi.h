/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's unified virtual memory driver, as much of it as maps a process's device memory: requests on
 * /dev/nvidia-uvm, ioctls that are bare numbers. Layouts and numbers are those of the open kernel modules
 * (kernel-open/nvidia-uvm: uvm_ioctl.h, uvm_types.h); statuses are the resource manager's (rm_abi.h).
 *
 * libcuda reserves a range of addresses (UVM_CREATE_EXTERNAL_RANGE), maps an object of device memory there
 * (UVM_MAP_EXTERNAL), and takes away the mapping (UVM_UNMAP_EXTERNAL) or range and mapping (UVM_FREE).
 */
#ifndef HAMI_UVM_ABI_H
#define HAMI_UVM_ABI_H
#include <stddef.h>
#include <stdint.h>

#define UVM_MAP_EXTERNAL 33u          /* UVM_MAP_EXTERNAL_ALLOCATION: struct uvm_map_external */
#define UVM_FREE 34u                  /* struct uvm_free */
#define UVM_UNMAP_EXTERNAL 66u        /* struct uvm_unmap_external */
#define UVM_CREATE_EXTERNAL_RANGE 73u /* struct uvm_create_range */

enum {                             /* statuses beside those of the resource manager that are in rm_abi.h */
       UVM_INVALID_ADDRESS = 0x1e, /* no range of this kind there */
       UVM_INVALID_DEVICE = 0x26,  /* a GPU that is not there */
       UVM_INVALID_OFFSET = 0x37,  /* the mapping ends behind the object */
       UVM_ADDRESS_IN_USE = 0x68,
};

struct uvm_attributes { /* UvmGpuMappingAttributes: how one GPU sees the memory */
	uint8_t gpu_uuid[16];
	uint32_t mapping, caching, format, element_bits, compression;
};

/* How many attributes struct uvm_map_external holds (UVM_MAX_GPUS), and held in older drivers. */
enum { UVM_MAX_GPUS = 256, UVM_MAX_GPUS_OLD = 32 };

struct uvm_map_external { /* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS */
	uint64_t base, length, offset;
	struct uvm_attributes gpu[UVM_MAX_GPUS];
	uint64_t count __attribute__((aligned(8))); /* of gpu[] */
	int32_t control_fd;                         /* of the client, at the resource manager */
	uint32_t client, memory, status;
};

struct uvm_unmap_external { /* UVM_UNMAP_EXTERNAL_PARAMS */
	uint64_t base, length;
	uint8_t gpu_uuid[16];
	uint32_t status;
};

struct uvm_free { /* UVM_FREE_PARAMS */
	uint64_t base, length;
	uint32_t status;
};

struct uvm_create_range { /* UVM_CREATE_EXTERNAL_RANGE_PARAMS */
	uint64_t base, length;
	uint32_t status;
};

_Static_assert(sizeof(struct uvm_attributes) == 36, "UvmGpuMappingAttributes");
_Static_assert(sizeof(struct uvm_map_external) == 9264, "UVM_MAP_EXTERNAL_ALLOCATION");
_Static_assert(offsetof(struct uvm_map_external, gpu) == 24, "UVM_MAP_EXTERNAL_ALLOCATION");
_Static_assert(offsetof(struct uvm_map_external, count) == 9240, "UVM_MAP_EXTERNAL_ALLOCATION");
_Static_assert(offsetof(struct uvm_map_external, status) == 9260, "UVM_MAP_EXTERNAL_ALLOCATION");
_Static_assert(sizeof(struct uvm_unmap_external) == 40, "UVM_UNMAP_EXTERNAL");
_Static_assert(offsetof(struct uvm_unmap_external, status) == 32, "UVM_UNMAP_EXTERNAL");
_Static_assert(sizeof(struct uvm_free) == 24 && sizeof(struct uvm_create_range) == 24,
	       "UVM_FREE, UVM_CREATE_EXTERNAL_RANGE");

#endif
