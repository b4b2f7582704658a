/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated libcuda and the simulated kernel say to one another: as much of NVIDIA's resource
 *manager interface as libcuda uses for channels, in NVIDIA's own layout, so that an interposer between the
 *two sees what it sees on a GPU. The allocation parameters are shortened to their first word, which means
 *here:
 *
 *	client    index of the process's slot in the simulation's state
 *	device    index of the machine's GPU
 *	group     engine: 1 compute, 9 copy
 */
#ifndef SIM_RM_ABI_H
#define SIM_RM_ABI_H
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

enum { RM_NR_FREE = 0x29, RM_NR_CONTROL = 0x2a, RM_NR_ALLOC = 0x2b };

enum {
	RM_CLASS_CLIENT = 0x41,
	RM_CLASS_DEVICE = 0x80,
	RM_CLASS_SUBDEVICE = 0x2080,
	RM_CLASS_DEVICE_MEMORY = 0x40,
	RM_CLASS_GROUP = 0xa06c,
	RM_CLASS_CHANNEL_LOW_BYTE = 0x6f,
};

#define RM_GROUP_SCHEDULE 0xa06c0101u
#define RM_GROUP_SET_TIMESLICE 0xa06c0103u /* u64 microseconds */
#define RM_GROUP_GET_TIMESLICE 0xa06c0104u
#define RM_GROUP_PREEMPT 0xa06c0105u
#define RM_DISABLE_CHANNELS 0x2080110bu

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

/* The head of NV_MEMORY_ALLOCATION_PARAMS; attributes' bits 25 and 26 are 0 for the GPU's own memory. */
struct rm_memory {
	uint32_t owner, type, flags, width, height, pitch, attributes, attributes2, format, compression,
		zcull;
	uint64_t range_low __attribute__((aligned(8))), range_high, size;
};
_Static_assert(offsetof(struct rm_memory, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS");

/* Handles of memory: the kernel keeps no record of those, the state has the sums. */
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
_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54");
_Static_assert(sizeof(struct rm_disable_channels) == 536, "FIFO_DISABLE_CHANNELS");

#define RM_REQUEST(number, type) _IOWR('F', number, type)
#endif
