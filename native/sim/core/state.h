/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that all processes of one simulated machine share: $HAMI_SIM/state, mapped by each of them.
 *
 * One robust mutex guards all of it. What matters is kept once, per process and GPU ("slot"); the sums per
 * GPU are derived and are recomputed when a holder of the mutex died. A slot belongs to a live process as
 * long as that process holds an open-file-description lock on byte SIM_LOCK_BASE + index; whoever looks
 * sweeps first, so an answer never counts the dead.
 *
 * Lock order: a library's own mutex, then this one. Nothing here may be called from a signal handler. A
 * forked child calls sim_fork_child() before anything else.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H
#include "machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

enum {
	SIM_MAX_SLOTS = 1024,
	SIM_SLOT_WORDS = SIM_MAX_SLOTS / 64,
	SIM_LOG_LENGTH = 1 << 15,
	SIM_MAX_SHARED = 256,    /* allocations that more than one process can hold */
	SIM_MAX_XIDS = 256,      /* kept; the oldest go first */
	SIM_SWITCHES = 1 << 13,  /* kept of each GPU */
	SIM_SLOT_CHANNELS = 512, /* compute channels of a process */
	SIM_VERSION = 8,
	SIM_MIG_INSTANCES = 14, /* ids of GPU instances on a GPU */
	SIM_MIG_SLICES = 7,     /* compute slices of a GPU, and so compute instances */
};
#define SIM_MAGIC 0x454c494653494d48ull
#define SIM_LOCK_BASE ((off_t)1 << 40)
#define SIM_NO_SLOT UINT32_MAX
#define SIM_NEVER UINT64_MAX

/*
 * One process on one GPU, or one of its channel groups: a process's first context on a GPU works in the process's own
 * slot, and each further one in a slot of its own, a line, of which only what is about work and channels is used.
 */
struct sim_share {
	uint64_t used_bytes, peak_bytes;
	uint64_t context_bytes; /* part of used_bytes */
	uint64_t launches;
	/*
	 * The context's work on this GPU is one line, in order of submission: submitted_ns long, done_ns of
	 * it done. A piece of work is over when done_ns has reached the submitted_ns at its end.
	 */
	uint64_t submitted_ns, done_ns;
	/* Not scheduled from pause_ns (SIM_NEVER: not asked for) until resume_ns. */
	uint64_t pause_ns, resume_ns;
	uint64_t timeslice_ns;
	uint32_t contexts;
	uint32_t pauses; /* how often it was paused */
	uint32_t wakes;  /* futex: grows when a sleeper must look again */
	/* Compute channels, and how many of them are disabled: when all are, the process is paused. */
	uint32_t channels, disabled;
	bool held; /* they said so when last looked at */
};

/* A compute channel, by the handles that any process may name it by. */
struct sim_channel {
	uint32_t client, handle; /* client 0: free */
	uint16_t gpu;
	bool disabled;
};

struct sim_slot {
	uint32_t state;    /* 0 free, 1 in use */
	int32_t pid;       /* as the process sees itself */
	int32_t first_pid; /* in the first PID namespace: what records of switches have */
	uint32_t uid;
	uint32_t reuse; /* grows each time the slot is taken */
	uint32_t owner; /* the process's own slot; of a line another one than this */
	char name[32];
	struct sim_share gpu[SIM_MAX_GPUS];
	uint32_t mig[SIM_MAX_GPUS]; /* the MIG device that the process uses: sim_mig_device(); 0: none */
	uint32_t channels;          /* entries of channel that were ever in use */
	struct sim_channel channel[SIM_SLOT_CHANNELS];
};

/* From start_ns on, the slot's work from position `from_ns` ran for length_ns. */
struct sim_run {
	uint64_t start_ns, length_ns, from_ns;
	uint32_t slot, reuse;
};

/* The id that a line's channels have in records of switches: never 0, and of nobody before it. */
static inline uint32_t sim_context_id(uint32_t slot, uint32_t reuse)
{
	return reuse * SIM_MAX_SLOTS + slot + 1;
}

/* A process's context came to the compute engine (`on`), or has left it. */
struct sim_switch {
	uint64_t at_ns;
	uint32_t slot, reuse;
	int32_t pid;
	uint32_t uid;
	bool on;
};

/* A GPU instance of MIG, at its id. See mig.h. */
struct sim_mig_instance {
	uint64_t serial;                         /* 0: free; no two instances of a machine have the same */
	uint32_t profile, start;                 /* index of the model's profiles; first memory slice */
	uint32_t compute_slices[SIM_MIG_SLICES]; /* of each compute instance, by its id; 0: free */
};

struct sim_gpu {
	uint64_t used_bytes; /* sum over the slots */
	uint64_t peak_bytes; /* largest used_bytes ever; the dead are swept before it grows */
	uint64_t allocations, frees, refusals;
	uint64_t events; /* changes of used_bytes so far; only grows */
	uint64_t reclaimed_bytes, reclaimed_processes;
	uint64_t busy_ns;                              /* kernels' time, all processes that ever were */
	uint64_t sent_bytes, received_bytes;           /* over PCIe: copies to and from the host */
	uint64_t peer_sent_bytes, peer_received_bytes; /* over NVLink: copies between GPUs */
	/* The scheduler: everything up to clock_ns (CLOCK_MONOTONIC) is decided. */
	uint64_t clock_ns, slice_end_ns;
	uint64_t cut_ns;  /* when the stay of whoever is on the engine ends all the same; SIM_NEVER */
	bool from_head;   /* the round begins anew with the next stay */
	uint32_t current; /* slot that runs, or SIM_NO_SLOT */
	uint32_t switches;
	int32_t nvml_error; /* what NVML's calls for this GPU return; 0: they work */
	uint32_t trouble;   /* enum sim_trouble, and below it reasons for reduced clocks as NVML's bits */
	uint64_t pending[SIM_SLOT_WORDS]; /* bit: the slot has work */
	uint32_t mig_mode, mig_pending;
	struct sim_mig_instance mig[SIM_MIG_INSTANCES];
	struct sim_switch engine; /* how whoever is on the engine came to it; slot may be SIM_NO_SLOT */
	uint64_t switched;        /* entries ever written to switch_log, in order of their times */
	struct sim_switch switch_log[SIM_SWITCHES];
	uint64_t runs; /* entries ever written to log */
	struct sim_run log[SIM_LOG_LENGTH];
};

/*
 * An allocation that several processes hold. It is charged to the one that made it and, when that one lets
 * go, to another that still holds it.
 */
struct sim_shared {
	uint64_t id; /* 0: free */
	uint64_t bytes;
	uint32_t gpu;
	uint32_t payer;
	uint64_t holders[SIM_SLOT_WORDS];
};

/* An event of NVML's, by default an Xid. */
struct sim_xid {
	uint32_t gpu, code;
	uint64_t type; /* nvmlEventType... */
};

enum sim_trouble { SIM_CLOCK_REASONS = 0xffff, SIM_ROWS_PENDING = 1 << 16 };

struct sim_state {
	uint64_t magic;
	uint32_t version;
	uint32_t gpu_count;
	uint64_t next_id;
	uint32_t clients; /* of the resource manager, ever made */
	uint64_t
		loaded_ns; /* CLOCK_MONOTONIC: when the state was made, which stands for the driver's start */
	uint64_t clock_offset_ns; /* the GPUs' clocks less CLOCK_MONOTONIC: CLOCK_REALTIME when it was made */
	uint64_t xids;            /* entries ever written to xid */
	struct sim_xid xid[SIM_MAX_XIDS];
	uint64_t mig_made; /* GPU instances ever made */
	uint32_t news;     /* futex: grows with each Xid and each change of a GPU's nvml_error */
	uint32_t reserved;
	pthread_mutex_t lock;
	uint64_t live[SIM_SLOT_WORDS]; /* bit: the slot is in use */
	struct sim_shared shared[SIM_MAX_SHARED];
	struct sim_gpu gpu[SIM_MAX_GPUS];
	struct sim_slot slot[SIM_MAX_SLOTS];
};

/* This process's view. Filled by sim_open, never unmapped. */
struct sim_view {
	struct sim_state *state;
	struct sim_machine machine;
	char dir[2048];
	int fd;        /* maps the state, and asks whether others' locks are held */
	int slot_fd;   /* holds this process's lock; -1 without a slot */
	uint32_t slot; /* or SIM_NO_SLOT */
};

/*
 * Maps the machine that $HAMI_SIM names, creating its state when there is none. 0, or -errno with one line on
 * stderr. Not thread-safe; call it once.
 */
int sim_open(struct sim_view *view);

/* Makes DIR/state, empty, unless it is there. 0 or -errno. */
int sim_state_create(const char *dir, uint32_t gpu_count);

/* Takes a slot for this process. 0, -ENOSPC, or what the lock said. */
int sim_slot_take(struct sim_view *view);

/* Takes one more slot for this process, which has one: a line of work. As above. */
int sim_line_take(struct sim_view *view, uint32_t *line);

/* A request for the lock of a slot, and what holds it. 0 or -errno. */
int sim_slot_lock(int fd, int command, short type, uint32_t slot, short *lock_type);

/* In a forked child: forgets the parent's slot. Async-signal-safe. */
void sim_fork_child(struct sim_view *view);

/* The shared mutex. A dead holder's leftovers are put right before sim_lock returns. */
void sim_lock(struct sim_view *view);
void sim_unlock(struct sim_view *view);

/* The rest is called with the shared mutex held. */

/* Returns what dead processes held. */
void sim_sweep(struct sim_view *view);

/* Charges bytes to this process's slot on gpu. 0, or -ENOMEM when the GPU has not as much left. */
int sim_charge(struct sim_view *view, uint32_t gpu, uint64_t bytes);
void sim_uncharge(struct sim_view *view, uint32_t gpu, uint64_t bytes);

/* Records an Xid error of gpu, for those that wait for NVML's events. */
void sim_put_xid(struct sim_view *view, uint32_t gpu, uint32_t code);
/* Records an ECC error of one or two bits. */
void sim_put_ecc(struct sim_view *view, uint32_t gpu, uint32_t bits);
/* From now on NVML shows these of enum sim_trouble for gpu, of those in mask. */
void sim_set_trouble(struct sim_view *view, uint32_t gpu, uint32_t mask, uint32_t trouble);
/* From now on NVML's calls for gpu return `code`; 0: they work. */
void sim_set_nvml_error(struct sim_view *view, uint32_t gpu, int32_t code);

/* An id that no shared allocation of this machine has had. */
uint64_t sim_shared_new_id(struct sim_view *view);
/* Turns bytes already charged into a shared allocation. False when the table is full. */
bool sim_shared_make(struct sim_view *view, uint32_t gpu, uint64_t bytes, uint64_t id);
/* This process holds id too. 0, or -ENOENT when nobody holds it any more. */
int sim_shared_join(struct sim_view *view, uint64_t id, uint32_t *gpu, uint64_t *bytes);
/* This process lets go of id. With the last holder its file under DIR/shared goes, if it has one. */
void sim_shared_leave(struct sim_view *view, uint64_t id);
/* Removes DIR/shared/ID. */
void sim_unlink_shared(const struct sim_view *view, uint64_t id);

static inline bool sim_bit(const uint64_t *words, uint32_t i)
{
	return words[i / 64] >> (i % 64) & 1;
}

static inline void sim_bit_set(uint64_t *words, uint32_t i)
{
	words[i / 64] |= 1ull << (i % 64);
}

static inline void sim_bit_clear(uint64_t *words, uint32_t i)
{
	words[i / 64] &= ~(1ull << (i % 64));
}

/* The first set bit at or after i, or SIM_NO_SLOT. */
static inline uint32_t sim_bit_next(const uint64_t *words, uint32_t i)
{
	for (uint32_t w = i / 64; w < SIM_SLOT_WORDS; w++) {
		uint64_t bits = words[w] & (w == i / 64 ? ~0ull << (i % 64) : ~0ull);
		if (bits)
			return w * 64 + (uint32_t)__builtin_ctzll(bits);
	}
	return SIM_NO_SLOT;
}
#endif
