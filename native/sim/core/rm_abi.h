/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs say to the simulated kernel: as much of NVIDIA's resource manager interface as libcuda uses
 * for channels, and every form in which device memory is asked for, in NVIDIA's own layout, so that an
 * interposer sees what it sees on a GPU. Two parameters mean something of the simulation's own, in their
 * first word:
 *
 *	client    index of the process's slot in the simulation's state; without parameters the kernel takes
 *one device    index of the machine's GPU
 */
#ifndef SIM_RM_ABI_H
#define SIM_RM_ABI_H
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

enum {
	RM_NR_FREE = 0x29,
	RM_NR_CONTROL = 0x2a,
	RM_NR_ALLOC = 0x2b,
	RM_NR_DUP = 0x34,
	RM_NR_HEAP = 0x4a,
	RM_NR_TRANSFER = 0xd3,
};

enum {
	RM_CLASS_CLIENT = 0x41,
	RM_CLASS_DEVICE = 0x80,
	RM_CLASS_SUBDEVICE = 0x2080,
	RM_CLASS_DEVICE_MEMORY = 0x40,
	RM_CLASS_HOST_MEMORY = 0x3e,
	RM_CLASS_VIRTUAL_MEMORY = 0x50a0,
	RM_CLASS_GROUP = 0xa06c,
	RM_CLASS_CHANNEL_LOW_BYTE = 0x6f,
};

#define RM_GROUP_SCHEDULE 0xa06c0101u
#define RM_GROUP_SET_TIMESLICE 0xa06c0103u /* u64 microseconds */
#define RM_GROUP_GET_TIMESLICE 0xa06c0104u
#define RM_GROUP_PREEMPT 0xa06c0105u
#define RM_DISABLE_CHANNELS 0x2080110bu
#define RM_SIM_CHANNELS 0x20809901u /* the simulation's own, on a subdevice: struct rm_sim_channels */

enum { RM_ENGINE_COMPUTE = 1, RM_ENGINE_COPY = 9 };

/* Statuses, as in the open kernel modules' nvstatuscodes.h. */
enum {
	RM_OK = 0,
	RM_NO_MEMORY = 0x51,
	RM_INSUFFICIENT_PERMISSIONS = 0x1b,
	RM_INVALID_ARGUMENT = 0x1f,
	RM_INVALID_CLASS = 0x22,
	RM_INVALID_CLIENT = 0x23,
	RM_INSUFFICIENT_RESOURCES = 0x1a,
	RM_INVALID_OBJECT_HANDLE = 0x33,
	RM_NOT_SUPPORTED = 0x56,
};

struct rm_free { /* NVOS00 */
	uint32_t client, parent, object, status;
};

struct rm_alloc { /* NVOS64 */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint64_t rights __attribute__((aligned(8)));
	uint32_t size, flags, status;
};

struct rm_alloc_short { /* NVOS21 */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};

struct rm_group { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
	uint32_t error_object, ecc_object, address_space, engine, vgpu;
};

struct rm_dup { /* NVOS55 */
	uint32_t client, parent, object, client_from, object_from, flags, status;
};

struct rm_transfer { /* nv_ioctl_xfer_t */
	uint32_t number, size;
	uint64_t argument __attribute__((aligned(8)));
};

/* The head of NV_MEMORY_ALLOCATION_PARAMS; attributes' bits 25 and 26 are 0 for the GPU's own memory. */
struct rm_memory {
	uint32_t owner, type, flags, width, height, pitch, attributes, attributes2, format, compression,
		zcull;
	uint64_t range_low __attribute__((aligned(8))), range_high, size;
};
_Static_assert(offsetof(struct rm_memory, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS");

#define RM_ATTRIBUTE_HOST (1u << 25)
#define RM_FLAG_HANDLE_PROVIDED 0x4000u
#define RM_FLAG_VIRTUAL 0x80000u

/* NVOS32, with the functions that allocate and free. */
enum { RM_HEAP_ALLOC_SIZE = 2, RM_HEAP_FREE = 3, RM_HEAP_ALLOC_TILED = 6, RM_HEAP_ALLOC_RANGE = 14 };
struct rm_heap {
	uint32_t client, parent, function, address_space;
	int16_t ivc;
	uint32_t status;
	uint64_t total __attribute__((aligned(8))), free;
	union {
		struct {
			uint32_t owner, memory, type, flags, attributes, format, compression, zcull, stride,
				width, height;
			uint64_t size __attribute__((aligned(8)));
		} alloc_size;
		struct {
			uint32_t owner, memory, type, flags, height;
			int32_t pitch;
			uint32_t attributes;
		} alloc_tiled;
		struct {
			uint32_t owner, memory, type, flags, attributes, format, compression, zcull, stride;
			uint64_t size __attribute__((aligned(8)));
		} alloc_range;
		struct {
			uint32_t owner, memory, flags;
		} free;
		char whole[144];
	} data;
};
_Static_assert(sizeof(struct rm_heap) == 184, "NVOS32");

/* libcuda's handles of memory: the kernel keeps no record of those, the state has the sums. */
#define RM_MEMORY_HANDLES 0x6d000000u
#define RM_CLIENT_HANDLES 0xc1d00000u

struct rm_control { /* NVOS54 */
	uint32_t client, object, command, flags;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};

struct rm_disable_channels {
	uint8_t disable;
	uint32_t count;
	uint8_t only_scheduling, rewind;
	uint64_t event __attribute__((aligned(8)));
	uint32_t clients[64], channels[64];
};
struct rm_sim_channels { /* of compute groups of this process on the GPU, and the groups' timeslices */
	uint32_t channels, disabled, groups, least_timeslice_us, most_timeslice_us;
};

_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54");
_Static_assert(sizeof(struct rm_disable_channels) == 536, "FIFO_DISABLE_CHANNELS");

#define RM_REQUEST(number, type) _IOWR('F', number, type)
#endif
