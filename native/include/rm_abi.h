/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's resource manager interface, as much of it as the interposer reads and the simulated kernel
 * answers: requests on /dev/nvidiactl, an ioctl of type 'F' whose number is the request's. Layouts and values
 * are those of the open kernel modules (nv_escape.h, nv-ioctl.h, nvos.h, nvstatuscodes.h, ctrl2080fifo.h,
 * ctrl2080gr.h, ctrl90cd.h, ctrla06c.h, ctrla06f.h, ctrl0000gpu.h, cl0080.h, cl00f8.h, cl90cd.h, cl90cdfecs.h). What the
 * simulation adds of its own is in sim/core/sim_rm.h.
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
	RM_NR_MAP = 0x4e,
	RM_NR_MAP_DMA = 0x57,
	RM_NR_TRANSFER = 0xd3,
};

enum {
	RM_CLASS_HOST_MEMORY = 0x3e,
	RM_CLASS_DEVICE_MEMORY = 0x40, /* NV01_MEMORY_LOCAL_USER: no other gives users device memory */
	RM_CLASS_CLIENT = 0x41,        /* NV01_ROOT_CLIENT, as 0 and 1 */
	RM_CLASS_DEVICE = 0x80,
	RM_CLASS_FABRIC = 0xf8, /* NV_MEMORY_FABRIC: device memory as other GPUs reach it over NVLink */
	RM_CLASS_SUBDEVICE = 0x2080,
	RM_CLASS_VIRTUAL_MEMORY = 0x50a0,
	RM_CLASS_EVENT_BUFFER = 0x90cd,      /* below the client */
	RM_CLASS_DEVICELESS_MEMORY = 0x90ce, /* below the client: the host's, which users may map */
	RM_CLASS_GROUP = 0xa06c,             /* a channel group */
	RM_CLASS_CHANNEL_LOW_BYTE = 0x6f,    /* AMPERE_CHANNEL_GPFIFO_A 0xc56f, HOPPER 0xc86f, ... */
};

/* Commands of RM_NR_CONTROL, and the object that each is sent to. */
#define RM_GROUP_SCHEDULE 0xa06c0101u      /* a group */
#define RM_GROUP_SET_TIMESLICE 0xa06c0103u /* a group: u64 microseconds */
#define RM_GROUP_GET_TIMESLICE 0xa06c0104u /* a group: u64 microseconds */
#define RM_GROUP_PREEMPT 0xa06c0105u       /* a group */
#define RM_CHANNEL_SCHEDULE 0xa06f0103u    /* a channel */
#define RM_CHANNEL_CONTEXT_ID 0xa06f0113u  /* a channel: u32, as records of switches have it; driver 555 */
#define RM_GPU_OF_UUID 0x274u              /* a client: struct rm_gpu_of_uuid */
#define RM_DISABLE_CHANNELS 0x2080110bu    /* a subdevice: struct rm_disable_channels */

/* A subdevice: binds an event buffer to its context switches; struct rm_bind_switches, and without reason. */
#define RM_BIND_SWITCHES 0x20801238u
#define RM_BIND_SWITCHES_V1 0x20801231u
#define RM_EVENTS_ENABLE 0x90cd0101u     /* an event buffer: struct rm_events_enable */
#define RM_EVENTS_UPDATE_GET 0x90cd0102u /* an event buffer: struct rm_events_get */
#define RM_EVENTS_FLUSH 0x90cd0104u      /* an event buffer, no parameters: all events up to now are there */

/* NV2080_ENGINE_TYPE: GR0 to GR7 are graphics and compute, COPY0 to COPY9 copy. */
enum { RM_ENGINE_COMPUTE = 1, RM_ENGINE_COMPUTE_LAST = 8, RM_ENGINE_COPY = 9, RM_ENGINE_COPY_LAST = 18 };

enum {
	RM_OK = 0,
	RM_INSUFFICIENT_RESOURCES = 0x1a,
	RM_INSUFFICIENT_PERMISSIONS = 0x1b,
	RM_INVALID_ARGUMENT = 0x1f,
	RM_INVALID_CHANNEL = 0x21,
	RM_INVALID_CLASS = 0x22,
	RM_INVALID_CLIENT = 0x23,
	RM_INVALID_OBJECT_HANDLE = 0x33,
	RM_OBJECT_NOT_FOUND = 0x57,
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

struct rm_memory_params { /* NV_MEMORY_ALLOCATION_PARAMS */
	struct rm_memory head;
	uint64_t alignment, offset, limit, address;
	uint32_t compression_tag, address_space, internal_flags, tag;
	int32_t numa_node;
};

struct rm_fabric { /* NV00F8_ALLOCATION_PARAMETERS of 535 and later */
	uint64_t alignment, size, page_bytes;
	uint32_t flags;
	uint64_t offset __attribute__((aligned(8)));
	uint32_t memory, reserved;
};
/* Drivers before 535 have 32 bits of page_bytes: there the memory's handle is where this one has the low word of offset. */
#define RM_FABRIC_MEMORY_BEFORE_535(fabric) ((uint32_t)(fabric).offset)

#define RM_ATTRIBUTE_CACHED (1u << 29)          /* NVOS32_ATTR_COHERENCY_CACHED */
#define RM_ATTRIBUTE2_USER_READ_ONLY (1u << 22) /* NVOS32_ATTR2_PROTECTION_USER_READ_ONLY */

struct rm_map { /* nv_ioctl_nvos33_parameters_with_fd */
	uint32_t client, device, memory;
	uint64_t offset __attribute__((aligned(8))), length, address;
	uint32_t status, flags;
	int32_t fd; /* another open of the same file: it is what mmap then takes, at offset 0 */
};
#define RM_MAP_READ_ONLY 1u

struct rm_map_dma { /* the head of NVOS46_PARAMETERS */
	uint32_t client, device, space, memory;
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

struct rm_device {         /* the head of NV0080_ALLOC_PARAMETERS */
	uint32_t instance; /* which GPU, by the resource manager's own count */
};

struct rm_gpu_of_uuid { /* NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS */
	uint8_t uuid[256];
	uint32_t flags, gpu, instance, subdevice_instance;
};
#define RM_UUID_BINARY 2u /* flags: 16 bytes of uuid count */

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

struct rm_event_buffer { /* NV_EVENT_BUFFER_ALLOC_PARAMETERS */
	uint64_t header_address, records_address;
	uint32_t record_size, record_count; /* size in bytes */
	uint64_t vardata_address;
	uint32_t vardata_size, records_free_threshold;
	uint64_t notification;
	uint32_t vardata_free_threshold, subdevice, flags;
	uint32_t header, records, vardata; /* handles of deviceless memory */
};

struct rm_bind_switches { /* NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS */
	uint32_t buffer, record_size, level_of_detail, filter;
	uint8_t all_users;
	uint32_t reason; /* of a refusal: RM_BIND_* */
};
#define RM_BIND_SWITCHES_V1_BYTES 20u
#define RM_LEVEL_SIMPLE 1u /* when a context comes to the engine, and when it has left it */
enum { RM_BIND_NEED_ADMIN = 4, RM_BIND_NEED_CAPABILITY = 5 };

struct rm_events_enable { /* NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS */
	uint8_t enable;
	uint32_t flags;
};
#define RM_EVENTS_KEEP_OLDEST 1u
#define RM_EVENTS_KEEP_NEWEST 2u

struct rm_events_get { /* NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS */
	uint32_t records, vardata;
};

struct rm_events_header {        /* NV_EVENT_BUFFER_HEADER */
	uint32_t get, put;       /* indices of records; put is where the next one goes */
	uint64_t count, dropped; /* only of a buffer that keeps the oldest */
	uint64_t vardata_dropped;
};

struct rm_switch_record { /* NV_EVENT_BUFFER_RECORD_HEADER, NV_EVENT_BUFFER_FECS_RECORD_V2 */
	uint16_t type, subtype;
	uint32_t vardata;
	uint8_t tag, vmid;
	uint16_t sequence; /* of the buffer's events: a gap is a loss */
	uint32_t context;  /* the channel's id: RM_CHANNEL_CONTEXT_ID; no two of a boot have the same */
	uint32_t pid;      /* in the first PID namespace; 0: another user's; UINT32_MAX: the driver's own */
	uint16_t reserved;
	uint8_t gpu_instance, compute_instance; /* 0xff: no MIG */
	uint64_t timestamp_ns;                  /* the GPU's clock, which follows CLOCK_REALTIME */
};
#define RM_RECORD_SWITCH 2u      /* type */
#define RM_TAG_START 6u          /* the context is on the engine */
#define RM_TAG_END 7u            /* it has left it */
#define RM_PID_HIDDEN 0u         /* another user's; its stamps are off by up to the length of the switch */
#define RM_PID_DRIVER UINT32_MAX /* the driver's own */

_Static_assert(sizeof(struct rm_memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(sizeof(struct rm_fabric) == 48 && offsetof(struct rm_fabric, memory) == 40,
	       "NV00F8_ALLOCATION_PARAMETERS");
_Static_assert(sizeof(struct rm_map) == 56 && offsetof(struct rm_map, fd) == 48, "NVOS33 with fd");
_Static_assert(sizeof(struct rm_event_buffer) == 72, "NV_EVENT_BUFFER_ALLOC_PARAMETERS");
_Static_assert(sizeof(struct rm_bind_switches) == 24, "GR_FECS_BIND_EVTBUF_FOR_UID_V2");
_Static_assert(sizeof(struct rm_events_enable) == 8 && sizeof(struct rm_events_get) == 8, "ctrl90cd.h");
_Static_assert(sizeof(struct rm_events_header) == 32, "NV_EVENT_BUFFER_HEADER");
_Static_assert(sizeof(struct rm_switch_record) == 32, "NV_EVENT_BUFFER_FECS_RECORD_V2");
_Static_assert(offsetof(struct rm_switch_record, timestamp_ns) == 24, "NV_EVENT_BUFFER_FECS_RECORD_V2");
_Static_assert(sizeof(struct rm_gpu_of_uuid) == 272, "GPU_GET_UUID_INFO");
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
