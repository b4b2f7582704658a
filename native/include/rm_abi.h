/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's resource manager interface, as much of it as the interposer reads and the simulated kernel
 * answers: requests on /dev/nvidiactl, an ioctl of type 'F' whose number is the request's. Layouts and values
 * are those of the open kernel modules (nv_escape.h, nv-ioctl.h, nvos.h, nvstatuscodes.h, ctrl2080fifo.h,
 * ctrla06c.h, ctrla06f.h). What the simulation adds of its own is in sim/core/sim_rm.h.
 *
 * Which driver versions were seen to make which requests: rm_drivers.tsv, beside this file.
 */
#ifndef HAMI_RM_ABI_H
#define HAMI_RM_ABI_H
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define RM_REQUEST(number, type) _IOWR('F', number, type)

enum {
	RM_NR_FREE = 0x29,
	RM_NR_CONTROL = 0x2a,
	RM_NR_ALLOC = 0x2b,
	RM_NR_DUP = 0x34,
	RM_NR_HEAP = 0x4a,
	RM_NR_TRANSFER = 0xd3,
};

enum {
	RM_CLASS_HOST_MEMORY = 0x3e,
	RM_CLASS_DEVICE_MEMORY = 0x40, /* NV01_MEMORY_LOCAL_USER: no other gives users device memory */
	RM_CLASS_CLIENT = 0x41,        /* NV01_ROOT_CLIENT, as 0 and 1 */
	RM_CLASS_DEVICE = 0x80,
	RM_CLASS_SUBDEVICE = 0x2080,
	RM_CLASS_VIRTUAL_MEMORY = 0x50a0,
	RM_CLASS_GROUP = 0xa06c,          /* a channel group */
	RM_CLASS_CHANNEL_LOW_BYTE = 0x6f, /* AMPERE_CHANNEL_GPFIFO_A 0xc56f, HOPPER 0xc86f, ... */
};

/* Commands of RM_NR_CONTROL, and the object that each is sent to. */
#define RM_GROUP_SCHEDULE 0xa06c0101u      /* a group */
#define RM_GROUP_SET_TIMESLICE 0xa06c0103u /* a group: u64 microseconds */
#define RM_GROUP_GET_TIMESLICE 0xa06c0104u /* a group: u64 microseconds */
#define RM_GROUP_PREEMPT 0xa06c0105u       /* a group */
#define RM_CHANNEL_SCHEDULE 0xa06f0103u    /* a channel */
#define RM_DISABLE_CHANNELS 0x2080110bu    /* a subdevice: struct rm_disable_channels */

/* NV2080_ENGINE_TYPE: GR0 to GR7 are graphics and compute, COPY0 is the first copy engine. */
enum { RM_ENGINE_COMPUTE = 1, RM_ENGINE_COMPUTE_LAST = 8, RM_ENGINE_COPY = 9 };

enum {
	RM_OK = 0,
	RM_INSUFFICIENT_RESOURCES = 0x1a,
	RM_INSUFFICIENT_PERMISSIONS = 0x1b,
	RM_INVALID_ARGUMENT = 0x1f,
	RM_INVALID_CLASS = 0x22,
	RM_INVALID_CLIENT = 0x23,
	RM_INVALID_OBJECT_HANDLE = 0x33,
	RM_NO_MEMORY = 0x51,
	RM_NOT_SUPPORTED = 0x56,
};

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
#define RM_ALLOC_SERIALIZED 1u /* in flags, NVOS64_FLAGS_FINN_SERIALIZED: params have another layout */

struct rm_alloc_short { /* NVOS21_PARAMETERS, the same up to params */
	uint32_t client, parent, object, class_id;
	uint64_t params __attribute__((aligned(8)));
	uint32_t size, status;
};

struct rm_dup { /* NVOS55_PARAMETERS */
	uint32_t client, parent, object, client_from, object_from, flags, status;
};

struct rm_transfer { /* nv_ioctl_xfer_t: a request that carries another one */
	uint32_t number, size;
	uint64_t argument __attribute__((aligned(8)));
};

struct rm_memory { /* the head of NV_MEMORY_ALLOCATION_PARAMS */
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attributes, attributes2, format, compression, zcull;
	uint64_t range_low __attribute__((aligned(8))), range_high, size;
};

/* In the flags of a request for memory (NVOS32_ALLOC_FLAGS). */
#define RM_FLAG_HANDLE_PROVIDED 0x00004000u
#define RM_FLAG_VIRTUAL 0x00080000u /* addresses alone */
/* In its attributes (NVOS32_ATTR). */
#define RM_ATTRIBUTE_LOCATION(attributes) ((attributes) >> 25 & 3u)
#define RM_LOCATION_DEVICE 0u
#define RM_ATTRIBUTE_HOST (1u << 25) /* location: the host's memory */
#define RM_ATTRIBUTE_PAGE(attributes) ((attributes) >> 23 & 3u)
enum { RM_PAGE_DEFAULT, RM_PAGE_4K, RM_PAGE_64K, RM_PAGE_2M }; /* default: the driver's choice */

struct rm_group { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
	uint32_t error_object, ecc_object, address_space, engine, vgpu;
};

/* Functions of RM_NR_HEAP that allocate and free (NVOS32_FUNCTION). */
enum {
	RM_HEAP_ALLOC_SIZE = 2,
	RM_HEAP_FREE = 3,
	RM_HEAP_ALLOC_TILED = 6,
	RM_HEAP_ALLOC_RANGE = 14,
	RM_HEAP_HW_FREE = 20,
};

struct rm_heap { /* NVOS32_PARAMETERS */
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
		char whole[144];
	} data;
};
/* As far as the fields above reach: enough to read a request of a driver whose structure ends earlier. */
#define RM_HEAP_HEAD_BYTES (offsetof(struct rm_heap, data.alloc_size.size) + sizeof(uint64_t))

#define RM_CHANNELS_PER_CONTROL 64
struct rm_disable_channels { /* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
	uint8_t disable;
	uint32_t count;
	uint8_t only_scheduling, rewind_gp_put;
	uint64_t preempt_event __attribute__((aligned(8)));
	uint32_t clients[RM_CHANNELS_PER_CONTROL], channels[RM_CHANNELS_PER_CONTROL];
};

_Static_assert(sizeof(struct rm_free) == 16, "NVOS00");
_Static_assert(sizeof(struct rm_alloc) == 48 && sizeof(struct rm_alloc_short) == 32, "NVOS64, NVOS21");
_Static_assert(sizeof(struct rm_control) == 32 && sizeof(struct rm_dup) == 28, "NVOS54, NVOS55");
_Static_assert(sizeof(struct rm_transfer) == 16, "nv_ioctl_xfer_t");
_Static_assert(offsetof(struct rm_memory, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(sizeof(struct rm_heap) == 184 && offsetof(struct rm_heap, status) == 20, "NVOS32");
_Static_assert(offsetof(struct rm_heap, data) == 40 && RM_HEAP_HEAD_BYTES == 96, "NVOS32");
_Static_assert(offsetof(struct rm_heap, data.alloc_size.size) == 88, "NVOS32, AllocSize");
_Static_assert(offsetof(struct rm_heap, data.alloc_range.size) == 80, "NVOS32, AllocSizeRange");
_Static_assert(sizeof(struct rm_disable_channels) == 536, "FIFO_DISABLE_CHANNELS");

#endif
