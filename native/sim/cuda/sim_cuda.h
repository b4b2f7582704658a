/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the simulated libcuda. One process-wide struct holds everything; `lock` guards the tables in it and
 * is taken before the shared state's mutex, never after it. Functions named like the driver's are its
 * exports; they check, and call the rest, which returns CUresult as well.
 */
#ifndef SIM_CUDA_H
#define SIM_CUDA_H
#define __CUDA_API_VERSION_INTERNAL        /* every version of every function, under its exported name */
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT /* what cuda.h declares is exported; the rest of us is hidden */
#include <cuda.h>

#include "../core/faults.h"
#include "../core/mig.h"
#include "../core/state.h"
#include "../core/timeline.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { SIM_STREAM_MAGIC = 0x5354524d, SIM_EVENT_MAGIC = 0x45564e54, SIM_CONTEXT_MAGIC = 0x43545854 };

enum api_id {
#define API(base, symbol, version) API_##symbol,
#define API_STREAM(base, symbol, version, suffix) API_##symbol,
#define API_ALIAS(base, symbol, version)
#include "api.def"
#undef API
#undef API_STREAM
#undef API_ALIAS
	API_COUNT
};

enum { SIM_CONTEXT_OBJECTS = 3, SIM_STACK_BYTES = 1024 };
enum { SIM_LIMITS = CU_LIMIT_PERSISTING_L2_CACHE_SIZE + 1 };

struct CUstream_st {
	uint32_t magic;
	unsigned flags;
	int priority;
	uint64_t id;
	struct CUctx_st *context;
	_Atomic uint64_t position;    /* end of the last work put into it */
	_Atomic uint64_t callbacks;   /* the process's callback count after the last one put into it */
	struct CUgraph_st *capturing; /* or NULL */
	bool capture_broken;
	CUstreamCaptureMode capture_mode;
	pthread_t capture_thread;
	uint32_t capture_id;
	struct CUstream_st *next;
};

struct region;

/* See memory.h. */
struct heap {
	uint32_t device;
	struct CUctx_st *context; /* NULL for a pool */
	size_t block_bytes;
	bool keep;    /* freed memory stays charged until heap_trim */
	bool managed; /* while cuMemAllocManaged allocates */
	bool opaque;  /* no copy finds what it has by its address: arrays */
	struct region *blocks, *whole, *idle;
	uint64_t reserved, reserved_high, used, used_high;
};

/* A driver's launch queue: the launch that finds it full waits. */
enum { SIM_QUEUE_DEPTH = 1024 };
struct queue {
	uint64_t launches;
	uint64_t end[SIM_QUEUE_DEPTH];
	struct CUevent_st *pending; /* in order of position */
};

struct CUctx_st {
	uint32_t magic;
	unsigned flags;
	uint64_t id;
	uint32_t device;    /* index into the machine's GPUs */
	uint32_t line;      /* the slot of its work */
	struct queue queue; /* guarded by the shared mutex */
	CUdevice ordinal;   /* as the application counts */
	unsigned version;   /* cuCtxGetApiVersion */
	bool primary;
	struct heap heap, arrays;
	struct CUstream_st legacy; /* the NULL stream */
	struct CUstream_st per_thread;
	struct CUstream_st *streams;
	_Atomic uint64_t blocking_position; /* end of the last work that the NULL stream waits for */
	_Atomic uint64_t last_position;     /* end of the last work in any stream */
	struct rm_context *rm;
	struct region *own[SIM_CONTEXT_OBJECTS]; /* memory that the context takes for itself, or NULL */
	pthread_mutex_t issuing;                 /* see sim_submit */
	size_t limit[SIM_LIMITS];
	bool limit_set[SIM_LIMITS];
	CUfunc_cache cache_config;
	_Atomic uint32_t peers; /* bit: access to that GPU is on */
	struct CUctx_st *next;
};

struct CUevent_st {
	uint32_t magic;
	unsigned flags;
	uint32_t device;
	struct CUctx_st *context; /* where it was recorded last, which may be destroyed; NULL: nowhere */
	bool recorded;
	bool pending;       /* on the list of those whose time is not known yet */
	uint64_t position;  /* it has happened when the context's line has come this far... */
	uint64_t callbacks; /* ...and this many callbacks have run */
	uint64_t recorded_ns;
	uint64_t happened_ns; /* 0: not known yet */
	struct CUevent_st *next;
};

/* The slots in which the contexts of a process work (lines.c): a slot goes on with the next context, and ends with the process. */
struct lines {
	uint32_t count;
	struct line {
		uint32_t slot;
		uint32_t gpus; /* bit: a context works there on that GPU */
	} all[SIM_MAX_SLOTS];
};

struct primary {
	unsigned references, flags;
	struct CUctx_st *context;
};

struct sim_process {
	pthread_mutex_t lock;
	struct sim_view view;
	struct faults faults;
	_Atomic bool ready;             /* cuInit succeeded */
	bool opened;                    /* view is usable; stays so in a forked child */
	_Atomic uint32_t generation;    /* grows in a forked child: what threads remember is void */
	uint32_t visible[SIM_MAX_GPUS]; /* CUDA_VISIBLE_DEVICES: ordinal to index of the machine's GPU */
	uint32_t visible_count;
	/*
	 * The MIG device that is the only visible one (0: none), and its serial number and UUID. Its size is what
	 * view.machine then says of its GPU.
	 */
	uint32_t mig;
	uint64_t mig_serial;
	char mig_uuid_hex[33];
	uint64_t next_id;
	struct CUctx_st *contexts;
	struct primary primary[SIM_MAX_GPUS];
	struct lines lines;
};

extern struct sim_process sim;

/* Before anything else in an export: initialised, and no fault asked for. */
CUresult sim_enter(enum api_id id);

/* The current context of this thread, or CUDA_ERROR_INVALID_CONTEXT. */
CUresult sim_context(struct CUctx_st **out);
CUresult sim_check_device(CUdevice device);
/*
 * Reads CUDA_VISIBLE_DEVICES: indices, or UUIDs or their beginnings. Ignores what follows an entry that names
 * no GPU. A MIG device is alone: the one named, or for a GPU that is divided the first that this process may
 * open.
 */
void sim_read_visible(void);
/* Enters the MIG device in the process's slot. False when it is gone. */
bool sim_join_mig(void);
bool sim_context_valid(const struct CUctx_st *context);
/* Of a call that is not safe during a capture: breaks those that forbid it to this thread. */
CUresult sim_capture_unsafe(void);
CUresult sim_primary_retain(CUcontext *context, CUdevice device);
/* Gives up a reference, or resets it. */
CUresult sim_primary_end(CUdevice device, bool reset);

/* Finds a stream by the application's handle, NULL and the special ones included, in the current context. */
CUresult sim_stream(CUstream handle, struct CUstream_st **out);

/* The same, for what cannot be captured: breaks a capture that is going on in the stream. */
CUresult sim_stream_live(CUstream handle, struct CUstream_st **out);

/* What is put into a capturing stream becomes a node. */
CUresult sim_capture_kernel(struct CUstream_st *stream, uint64_t ns);
CUresult sim_capture_alloc(struct CUstream_st *stream, CUdeviceptr *out, size_t size);
CUresult sim_capture_free(struct CUstream_st *stream, CUdeviceptr address);

/* A copy between any two addresses, and back after it if `wait`. */
CUresult sim_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t size, bool wait);
/* The same for `rows` of size bytes; does not wait. */
CUresult sim_copy_rows(CUstream stream, CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch,
		       size_t size, size_t rows);

/*
 * Notes when events happened that have happened by now. Called with the shared mutex held, after the timeline
 * has been advanced.
 */
void sim_settle_events(struct CUctx_st *context);
/* Returns the event as it is now: another thread may record it. */
struct CUevent_st sim_event_read(CUevent event);

/* A function that runs on the host when stream has come to it (worker.c). */
CUresult sim_callback(struct CUstream_st *stream, void (*function)(void *), void *argument);
/* How many callbacks have run; and waits until that many have. */
uint64_t sim_callbacks_done(void);
void sim_callbacks_wait(uint64_t count);
/* Around a fork, so that the child finds the worker's mutex in its own hands. */
void sim_worker_before_fork(void);
void sim_worker_after_fork(void);
void sim_worker_fork_child(void);

/* Memory that may be idle is returned at every synchronisation (pool.c). */
void sim_pools_settle(void);
void sim_pools_mark(void);
void sim_pools_fork_child(void);

/*
 * True when all of [address, address + size) is device memory or mapped. `write`: it is written to next.
 * Called with sim.lock held.
 */
bool sim_device_range(CUdeviceptr address, size_t size, bool write);

/*
 * A launch into stream. One that finds the launch queue full waits, and holds the context's mutex `issuing` while it
 * does; copies and fills wait for that mutex, as for the driver's own. Nothing is locked after it but the shared
 * mutex, and nobody waits for it with another one held.
 */
void sim_submit(struct CUstream_st *stream, uint64_t length_ns);
/* Returns when no launch of the context waits for room in the queue. */
void sim_await_launches(struct CUctx_st *context);
/* Work that no kernel launch asked for. */
void sim_submit_copy(struct CUstream_st *stream, uint64_t length_ns);
/* The stream ends at `end`, if it did not end later already. */
void sim_stream_extend(struct CUstream_st *stream, uint64_t end);
/* Where stream ends: for the NULL stream, where the last of all blocking streams ends. */
uint64_t sim_stream_position(struct CUstream_st *stream);
/* Waits for it. */
void sim_stream_drain(struct CUstream_st *stream);

/* The process's callback count after the last one put into any stream. With sim.lock held. */
uint64_t sim_context_callbacks(struct CUctx_st *context);

/* Waits for all work of context. */
void sim_context_drain(struct CUctx_st *context);

/* Finds a line for a context, and gives it back when the context's work is over. With sim.lock held. */
CUresult sim_line_begin(struct CUctx_st *context);
void sim_line_end(const struct CUctx_st *context);

/* The context's channels (channels.c). With sim.lock held. */
CUresult sim_channels_open(struct CUctx_st *context);
void sim_channels_close(struct CUctx_st *context);
void sim_rm_fork_child(void);

/* In a forked child: forgets the parent's regions. */
void sim_memory_fork_child(void);
void sim_vmm_fork_child(void);
void sim_graph_fork_child(void);
void sim_ipc_fork_child(void);
void sim_host_fork_child(void);

/* The memory that a context takes for itself (context_memory.c). With sim.lock held. */
CUresult sim_context_memory_take(struct CUctx_st *context);
/* Where the first row of an array has these bytes. */
CUresult sim_array_range(CUarray array, size_t offset, size_t size, CUdeviceptr *out);
/* How much that is now. */
uint64_t sim_context_memory_bytes(const struct CUctx_st *context);
/* Takes memory for the stacks of threads, of so many bytes each, and gives back what was there for them. */
CUresult sim_context_stacks(struct CUctx_st *context, size_t limit);
void sim_context_memory_give(struct CUctx_st *context);

#define SIM_ENTER(symbol)                                                                                    \
	do {                                                                                                 \
		CUresult entered_ = sim_enter(API_##symbol);                                                 \
		if (entered_ != CUDA_SUCCESS)                                                                \
			return entered_;                                                                     \
	} while (0)

#define SIM_CHECK(expression)                                                                                \
	do {                                                                                                 \
		CUresult checked_ = (expression);                                                            \
		if (checked_ != CUDA_SUCCESS)                                                                \
			return checked_;                                                                     \
	} while (0)

/* An export that needs a current context: enters, and declares it. */
#define SIM_ENTER_CONTEXT(symbol, context)                                                                   \
	struct CUctx_st *context;                                                                            \
	SIM_ENTER(symbol);                                                                                   \
	SIM_CHECK(sim_context(&context))

static inline bool sim_same_line(const struct CUctx_st *a, const struct CUctx_st *b)
{
	return a->line == b->line && a->device == b->device;
}

static inline void sim_process_lock(void)
{
	pthread_mutex_lock(&sim.lock);
}

static inline void sim_process_unlock(void)
{
	pthread_mutex_unlock(&sim.lock);
}
#endif
