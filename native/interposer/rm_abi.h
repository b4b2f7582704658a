/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of NVIDIA's resource manager interface as the interposer reads: requests on /dev/nvidiactl, from
 * the open kernel modules (nv_escape.h, nv-ioctl.h, nvos.h, ctrl2080fifo.h, ctrla06c.h, ctrla06f.h) and seen
 * on driver 580.159. The ioctl's type is 'F', its number is the request's.
 */
#ifndef HAMI_RM_ABI_H
#define HAMI_RM_ABI_H
#include <stddef.h>
#include <stdint.h>

enum {
	RM_FREE = 0x29,
	RM_CONTROL = 0x2a,
	RM_ALLOC = 0x2b,
	RM_DUP = 0x34,
	RM_HEAP = 0x4a,
	RM_TRANSFER = 0xd3
};

enum {
	CLASS_DEVICE_MEMORY = 0x40, /* NV01_MEMORY_LOCAL_USER: the only one that gives users device memory */
	CLASS_CLIENT = 0x41,        /* NV01_ROOT_CLIENT, as 0 and 1 */
	CLASS_DEVICE = 0x80,
	CLASS_SUBDEVICE = 0x2080,
	CLASS_CHANNEL_GROUP = 0xa06c,
	CLASS_CHANNEL_LOW_BYTE = 0x6f, /* AMPERE_CHANNEL_GPFIFO_A 0xc56f, HOPPER 0xc86f, ... */
};

enum { HEAP_ALLOC_SIZE = 2, HEAP_FREE = 3, HEAP_ALLOC_TILED = 6, HEAP_ALLOC_RANGE = 14, HEAP_HW_FREE = 20 };

#define RM_STATUS_NO_MEMORY 0x51          /* NV_ERR_NO_MEMORY */
#define RM_STATUS_INVALID_CLIENT 0x23     /* NV_ERR_INVALID_CLIENT */
#define CTRL_GROUP_SCHEDULE 0xa06c0101u   /* on a group */
#define CTRL_SET_TIMESLICE 0xa06c0103u    /* on a group: u64 microseconds */
#define CTRL_CHANNEL_SCHEDULE 0xa06f0103u /* on a channel */
#define CTRL_DISABLE_CHANNELS 0x2080110bu /* on a subdevice */
#define ALLOC_FLAG_SERIALIZED 1u          /* NVOS64_FLAGS_FINN_SERIALIZED: params in another layout */
#define MEMORY_FLAG_VIRTUAL 0x00080000u   /* NVOS32_ALLOC_FLAGS_VIRTUAL: addresses alone */
#define MEMORY_LOCATION(attributes) ((attributes) >> 25 & 3u) /* NVOS32_ATTR_LOCATION */
#define MEMORY_LOCATION_DEVICE 0u
#define ENGINE_COMPUTE_FIRST 1u /* NV2080_ENGINE_TYPE_GR0 to GR7: graphics and compute */
#define ENGINE_COMPUTE_LAST 8u
#define MAX_PER_CONTROL 64

struct rm_free { /* NVOS00_PARAMETERS */
	uint32_t client, parent, object, status;
};

struct rm_control { /* NVOS54_PARAMETERS */
	uint32_t client, object, command, flags;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};

struct rm_alloc { /* NVOS64_PARAMETERS */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint64_t rights __attribute__((aligned(8)));
	uint32_t size, flags, status;
};

struct rm_alloc_short { /* NVOS21_PARAMETERS, the same up to params */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};

struct rm_dup { /* NVOS55_PARAMETERS */
	uint32_t client, parent, object, client_from, object_from, flags, status;
};

struct rm_transfer { /* nv_ioctl_xfer_t: a request in another's clothes */
	uint32_t number, size;
	uint64_t argument __attribute__((aligned(8)));
};

struct rm_memory { /* the head of NV_MEMORY_ALLOCATION_PARAMS */
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attributes, attributes2, format, compression, zcull;
	uint64_t range_low __attribute__((aligned(8))), range_high, size;
};

struct rm_group { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
	uint32_t error_object, ecc_object, address_space, engine;
};

struct rm_heap { /* the head of NVOS32_PARAMETERS */
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
		struct {
			uint32_t memory, flags;
		} hw_free;
	} data;
};

struct rm_disable_channels { /* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
	uint8_t disable;
	uint32_t count;
	uint8_t only_disable_scheduling, rewind_gp_put;
	uint64_t preempt_event __attribute__((aligned(8)));
	uint32_t clients[MAX_PER_CONTROL], channels[MAX_PER_CONTROL];
};

_Static_assert(sizeof(struct rm_alloc) == 48 && sizeof(struct rm_alloc_short) == 32, "NVOS64, NVOS21");
_Static_assert(sizeof(struct rm_control) == 32 && sizeof(struct rm_dup) == 28, "NVOS54, NVOS55");
_Static_assert(sizeof(struct rm_transfer) == 16, "nv_ioctl_xfer_t");
_Static_assert(offsetof(struct rm_memory, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(offsetof(struct rm_heap, status) == 20 && offsetof(struct rm_heap, data) == 40, "NVOS32");
_Static_assert(offsetof(struct rm_heap, data.alloc_size.size) == 88, "NVOS32, AllocSize");
_Static_assert(offsetof(struct rm_heap, data.alloc_range.size) == 80, "NVOS32, AllocSizeRange");
_Static_assert(sizeof(struct rm_disable_channels) == 536, "FIFO_DISABLE_CHANNELS");

#endif
