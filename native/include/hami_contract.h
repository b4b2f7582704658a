/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from hami_hpc/contract/contract.toml by `make generate`. Do not edit. */
#ifndef HAMI_CONTRACT_H
#define HAMI_CONTRACT_H
#include <stddef.h>
#include <stdint.h>

#define HAMI_ABI_VERSION 2u
#define HAMI_ENV_VGPU "HAMI_HPC_VGPU"
#define HAMI_ENV_CLASS "HAMI_HPC_CLASS"
#define HAMI_ENV_MEM_MIB "HAMI_HPC_MEM_MIB"
#define HAMI_ENV_CORES "HAMI_HPC_CORES"
#define HAMI_ENV_SLO_US "HAMI_HPC_SLO_US"
#define HAMI_ENV_LIMITS "HAMI_HPC_LIMITS"
#define HAMI_ENV_LOG "HAMI_HPC_LOG"
#define HAMI_ENV_SWAP_DIR "HAMI_HPC_SWAP_DIR"
#define HAMI_ENV_CHECKSUMS "HAMI_HPC_CHECKSUMS"
#define HAMI_ENV_ANNOUNCE "HAMI_HPC_ANNOUNCE"
#define HAMI_GRES_SHARD "shard"
#define HAMI_GRES_CLASS "vgpu"
#define HAMI_GRES_MEM "vgpu_mem"
#define HAMI_GRES_CORES "vgpu_cores"
#define HAMI_GRES_SLO "vgpu_slo"
#define HAMI_GRES_FIXED "vgpu_fixed"
enum { HAMI_POLICY_CAP = 0, HAMI_POLICY_BURST = 1, HAMI_POLICY_NONE = 2 };
#define HAMI_POLICY_NAMES {"cap", "burst", "none"} /* indexed by the enum above */
enum { HAMI_MECHANISM_AUTO = 0, HAMI_MECHANISM_DUTY = 1, HAMI_MECHANISM_SLICE = 2, HAMI_MECHANISM_GATE = 3 };
#define HAMI_MECHANISM_NAMES {"auto", "duty", "slice", "gate"} /* indexed by the enum above */
enum { HAMI_SWAPPED_GPU = 0, HAMI_SWAPPED_HOST = 1, HAMI_SWAPPED_BUSY = 2, HAMI_SWAPPED_CONTEXTS = 3, HAMI_SWAPPED_SHARED = 4, HAMI_SWAPPED_ROOM = 5, HAMI_SWAPPED_DRIVER = 6, HAMI_SWAPPED_RETURNING = 7, HAMI_SWAPPED_WANTED = 8, HAMI_SWAPPED_LEAVING = 9 };
#define HAMI_SWAPPED_NAMES {"gpu", "host", "busy", "contexts", "shared", "room", "driver", "returning", "wanted", "leaving"} /* indexed by the enum above */
enum { HAMI_MODE_SHARE = 0, HAMI_MODE_MPS = 1, HAMI_MODE_MIG = 2 };
#define HAMI_MODE_NAMES {"share", "mps", "mig"} /* indexed by the enum above */
#define HAMI_CLASS_NAME_MAX 15u
#define HAMI_CLASS_PRIORITY_MAX 1000u
#define HAMI_CLASS_SLICE_US_MIN 10u
#define HAMI_CLASS_SLICE_US_MAX 100000u
#define HAMI_FILE_JOB_LIMITS "job.limits"
#define HAMI_FILE_USAGE "shared/usage"
#define HAMI_FILE_REFUSED "refused"
#define HAMI_FILE_WHOLE "whole"
#define HAMI_FILE_RUN_DIR "/run/hami-hpc"
#define HAMI_FILE_SELF "/run/hami-hpc/self"
#define HAMI_FILE_SELF_LIMITS "step.limits"
#define HAMI_FILE_CONTAINER_PRELOAD "container.preload"
#define HAMI_FILE_CONTAINER_MOUNTS "container.mounts"
#define HAMI_FILE_MPS "mps"
#define HAMI_FILE_MPS_CLIENTS "hami-hpc-clients"
#define HAMI_FILE_MIG "mig"
#define HAMI_FILE_FIRST_STEP "first-step"
#define HAMI_FILE_SLUID "sluid"
#define HAMI_FILE_MIG_STATIC "mig-static"
#define HAMI_FILE_STEP_LIMITS_FORMAT "step-%u.limits"
#define HAMI_FILE_SLICE_JOB_LIMITS_FORMAT "job.%u.limits"
#define HAMI_FILE_SLICE_STEP_LIMITS_FORMAT "step-%u.%u.limits"
#define HAMI_FILE_SLICE_USAGE_FORMAT "shared/usage.%u"
#define HAMI_FILE_SELF_SLICE_LIMITS_FORMAT "step.%u.limits"
#define HAMI_LIMITS_MAGIC 0x314d494c494d4148ull
#define HAMI_USAGE_MAGIC 0x31455355494d4148ull
#define HAMI_USAGE_STEP_COUNT 1024u
#define HAMI_USAGE_SLOT_COUNT 2048u
#define HAMI_HISTORY_MAGIC 0x31534948494d4148ull
#define HAMI_HISTORY_MINUTE_COUNT 1440u
#define HAMI_SLOT_LOCK_BASE 1099511627776ull
#define HAMI_JOB_STEP_ID 4294967295ull
#define HAMI_LATENCY_BUCKETS 42ull
#define HAMI_LATENCY_LEAST_NS 64000ull
#define HAMI_SWAP_NEVER 0ull
#define HAMI_SWAP_IN 1ull
#define HAMI_SWAP_OUT 2ull
#define HAMI_SWAP_SUSPENDED 3ull
#define HAMI_SWAP_TURN 4ull
#define HAMI_SWAP_WAIT 5ull

/* Root writes it (the prolog the job's, SPANK a step's), everybody reads it. Both apply: the smaller limit counts. The record of a step that has all of its job's memory, or time, says no limit of it with mode=share (2^64 - 1 bytes, 100 %), so that the job's counts alone, also after a resize. */
struct hami_limits {
	uint64_t magic; /* HAMILIM1, little-endian */
	uint32_t abi_version; /* abi.version */
	uint32_t record_size; /* bytes of this record (4096) */
	uint64_t sequence; /* even: stable; root makes it odd while it changes a field in place */
	uint32_t job_id; /* Slurm's job id */
	uint32_t step_id; /* Slurm's step id; 0xffffffff in the job's record */
	uint32_t uid; /* the job's user */
	uint32_t gpu_minor; /* minor number of the GPU's device file */
	uint64_t mem_limit_bytes; /* maximum device memory of all processes together */
	uint64_t gpu_total_bytes; /* memory of the whole GPU usable by CUDA */
	uint32_t cores_percent; /* share of the GPU's time, 1 to 100 */
	uint32_t policy; /* see [policies] */
	uint32_t mode; /* see [request.modes] */
	uint32_t mechanism; /* how the share of time is enforced, see [mechanisms] */
	uint64_t created_unix_ns; /* when the record was written, ns since 1970 */
	char gpu_uuid[96]; /* GPU-... or MIG-... of the device granted */
	char class_name[16]; /* class of service, see [classes] */
	uint32_t class_priority; /* priority of the class among those that are latency-critical, 0 to 1000 */
	uint32_t slice_us; /* timeslice of the class on the GPU, us, 10 to 100000; 0: it follows from cores_percent */
	uint32_t latency; /* 1: latency-critical, other jobs on the GPU give way; else 0 */
	uint32_t floor_percent; /* share of the GPU's time that a latency-critical job leaves to others, 0 to 99 */
	uint32_t slo_us; /* longest time a request of a latency-critical job should take, us; 0: none is given */
	uint32_t latency_others; /* latency-critical jobs on the GPU besides this one */
	uint32_t turn_begin_permille; /* start of the job's turn in the GPU's common period, permille, 0 to 999 */
	uint32_t turn_length_permille; /* length of that turn, permille; 0: no turns, always open. Of a latency-critical job: the part of its own, longer period in which it works when it wants more than its share */
	uint32_t others_least_cores; /* fewest cores of another job on the GPU, percent; 0: no other job */
	uint32_t others_capped; /* other jobs on the GPU whose policy is cap */
	uint32_t latency_above; /* of a latency-critical job: those on the GPU that come before it, by class_priority, then by slo_us; else 0 */
	uint32_t beside_slice_us; /* timeslice of the job while a job that works in step is on its GPU, us, at most 100000; 0: there is none, or it is this one */
	uint32_t step_begin_permille; /* of a job that works in step: when it begins in the common period, permille, 0 to 999 */
	uint32_t in_step; /* 1: the job's slices on its GPUs of this node are open at the same times, for its collectives; 2: those on its other nodes too; else 0 */
	uint32_t slice_index; /* which of the job's slices on this node the record is of, from 0 */
	uint32_t slice_count; /* slices of the job on this node, each on a GPU of its own; 0, of an older hami_hpc, is 1 */
	uint32_t max_processes; /* most processes of the job that use the slice at once, 1 to 2048; 0: any number */
	char device_uuid[48]; /* the instance, MIG-..., which programs see as their GPU; gpu_uuid is the GPU that it is of */
	uint32_t device_percent; /* the step's share of the instance's time, 1 to 100; cores_percent is that of the GPU */
	uint64_t asked_mem_bytes; /* what the job's units say of mem_limit_bytes */
	uint64_t most_mem_bytes; /* largest mem_limit_bytes since the job began */
	uint32_t asked_cores_percent; /* what the job's units say of cores_percent */
	uint32_t swap; /* where the device memory of the job's programs shall be: swap_never: on the GPU, always; swap_in: on the GPU; swap_out: on the host; swap_suspended: on the host, as long as Slurm suspends the job; swap_turn: on the host, until it is the job's turn; swap_wait: as swap_never, once the GPU has room for the job: until then none of its programs may begin to use it */
	uint64_t swap_pinned_bytes; /* most memory of the host that each process of the job keeps page-locked between two moves of its device memory; 0: none */
	uint32_t latency_cores; /* of a latency-critical job: cores of all on the GPU that leave a floor together, percent; 0: there are not several, or there is nobody else */
	uint32_t server_cores; /* of a job with mode=mps: cores of all jobs of its MPS server on the GPU, percent, at most 100; else 0 */
	uint32_t latency_beyond; /* 1: the job would be latency-critical and is treated as any other, as it wants more than its cores; else 0 */
	uint32_t only_other_cores; /* cores of the only other tenant of the GPU, a job or all jobs of an MPS server, percent, if its timeslice follows from them; else 0 */
	uint8_t pad0[3736];
};
_Static_assert(offsetof(struct hami_limits, magic) == 0, "magic");
_Static_assert(offsetof(struct hami_limits, abi_version) == 8, "abi_version");
_Static_assert(offsetof(struct hami_limits, record_size) == 12, "record_size");
_Static_assert(offsetof(struct hami_limits, sequence) == 16, "sequence");
_Static_assert(offsetof(struct hami_limits, job_id) == 24, "job_id");
_Static_assert(offsetof(struct hami_limits, step_id) == 28, "step_id");
_Static_assert(offsetof(struct hami_limits, uid) == 32, "uid");
_Static_assert(offsetof(struct hami_limits, gpu_minor) == 36, "gpu_minor");
_Static_assert(offsetof(struct hami_limits, mem_limit_bytes) == 40, "mem_limit_bytes");
_Static_assert(offsetof(struct hami_limits, gpu_total_bytes) == 48, "gpu_total_bytes");
_Static_assert(offsetof(struct hami_limits, cores_percent) == 56, "cores_percent");
_Static_assert(offsetof(struct hami_limits, policy) == 60, "policy");
_Static_assert(offsetof(struct hami_limits, mode) == 64, "mode");
_Static_assert(offsetof(struct hami_limits, mechanism) == 68, "mechanism");
_Static_assert(offsetof(struct hami_limits, created_unix_ns) == 72, "created_unix_ns");
_Static_assert(offsetof(struct hami_limits, gpu_uuid) == 80, "gpu_uuid");
_Static_assert(offsetof(struct hami_limits, class_name) == 176, "class_name");
_Static_assert(offsetof(struct hami_limits, class_priority) == 192, "class_priority");
_Static_assert(offsetof(struct hami_limits, slice_us) == 196, "slice_us");
_Static_assert(offsetof(struct hami_limits, latency) == 200, "latency");
_Static_assert(offsetof(struct hami_limits, floor_percent) == 204, "floor_percent");
_Static_assert(offsetof(struct hami_limits, slo_us) == 208, "slo_us");
_Static_assert(offsetof(struct hami_limits, latency_others) == 212, "latency_others");
_Static_assert(offsetof(struct hami_limits, turn_begin_permille) == 216, "turn_begin_permille");
_Static_assert(offsetof(struct hami_limits, turn_length_permille) == 220, "turn_length_permille");
_Static_assert(offsetof(struct hami_limits, others_least_cores) == 224, "others_least_cores");
_Static_assert(offsetof(struct hami_limits, others_capped) == 228, "others_capped");
_Static_assert(offsetof(struct hami_limits, latency_above) == 232, "latency_above");
_Static_assert(offsetof(struct hami_limits, beside_slice_us) == 236, "beside_slice_us");
_Static_assert(offsetof(struct hami_limits, step_begin_permille) == 240, "step_begin_permille");
_Static_assert(offsetof(struct hami_limits, in_step) == 244, "in_step");
_Static_assert(offsetof(struct hami_limits, slice_index) == 248, "slice_index");
_Static_assert(offsetof(struct hami_limits, slice_count) == 252, "slice_count");
_Static_assert(offsetof(struct hami_limits, max_processes) == 256, "max_processes");
_Static_assert(offsetof(struct hami_limits, device_uuid) == 260, "device_uuid");
_Static_assert(offsetof(struct hami_limits, device_percent) == 308, "device_percent");
_Static_assert(offsetof(struct hami_limits, asked_mem_bytes) == 312, "asked_mem_bytes");
_Static_assert(offsetof(struct hami_limits, most_mem_bytes) == 320, "most_mem_bytes");
_Static_assert(offsetof(struct hami_limits, asked_cores_percent) == 328, "asked_cores_percent");
_Static_assert(offsetof(struct hami_limits, swap) == 332, "swap");
_Static_assert(offsetof(struct hami_limits, swap_pinned_bytes) == 336, "swap_pinned_bytes");
_Static_assert(offsetof(struct hami_limits, latency_cores) == 344, "latency_cores");
_Static_assert(offsetof(struct hami_limits, server_cores) == 348, "server_cores");
_Static_assert(offsetof(struct hami_limits, latency_beyond) == 352, "latency_beyond");
_Static_assert(offsetof(struct hami_limits, only_other_cores) == 356, "only_other_cores");
_Static_assert(sizeof(struct hami_limits) == 4096, "size");

/* Head of the usage file. The job's own processes write it under `lock`; root reads it and trusts no value in it. */
struct hami_usage {
	uint64_t magic; /* HAMIUSE1, little-endian */
	uint32_t abi_version; /* abi.version */
	uint32_t record_size; /* bytes of the whole file */
	uint32_t lock; /* 0 free, else slot index + 1 of the holder; never held during a driver call */
	uint32_t slot_count; /* number of slots */
	uint32_t processes; /* live slots */
	uint32_t reserved; /* 0 */
	uint64_t used_bytes; /* sum of the live slots' used_bytes */
	uint64_t peak_bytes; /* largest used_bytes so far */
	uint64_t oom_count; /* requests refused because of a limit */
	uint64_t reclaimed_bytes; /* bytes returned from processes that died without freeing */
	uint64_t gpu_busy_ns; /* sum of the slots' gpu_busy_ns of processes that have ended, ns */
	uint64_t throttled_ns; /* sum of the slots' throttled_ns of processes that have ended, ns */
	uint64_t device_oom_count; /* requests that the limits allowed and the driver refused, because others held the memory */
	uint64_t time_full_at; /* the job's budget of the GPU's time: CLOCK_MONOTONIC at which it is full if nothing is used until then, ns, even; plus 1 while its processes are paused; see native/interposer/arbitration */
	uint64_t time_used; /* the GPU's time that all processes of the job have used, those that have ended too, ns */
	uint64_t latency_buckets[42]; /* requests by their time: row i at most latency_least_ns x sqrt(2)^i, the last one longer than all others */
	uint64_t latency_sum_ns; /* time of these requests together, ns */
	uint64_t slo_miss_count; /* requests that took longer than their deadline, or else than the slo */
	uint64_t pause_count; /* pauses of the job's processes that have ended */
	uint64_t paused_ns; /* time of these pauses together, ns */
	uint64_t floor_hit_count; /* times that a latency-critical job had used all that its class's floor leaves it */
	uint64_t first_context_unix_ns; /* when a process of the job first made a context, ns since 1970; 0: none has */
	uint64_t first_launch_unix_ns; /* when a process of the job first launched a kernel or graph, ns since 1970; 0: none has */
	uint64_t last_use_unix_ns; /* when work of the job was last seen on the GPU, ns since 1970; 0: never */
	uint64_t more_unix_ns; /* when a process of the job last found that the job wants more than its cores, ns since 1970; 0: never */
	uint8_t pad0[3584];
};
_Static_assert(offsetof(struct hami_usage, magic) == 0, "magic");
_Static_assert(offsetof(struct hami_usage, abi_version) == 8, "abi_version");
_Static_assert(offsetof(struct hami_usage, record_size) == 12, "record_size");
_Static_assert(offsetof(struct hami_usage, lock) == 16, "lock");
_Static_assert(offsetof(struct hami_usage, slot_count) == 20, "slot_count");
_Static_assert(offsetof(struct hami_usage, processes) == 24, "processes");
_Static_assert(offsetof(struct hami_usage, reserved) == 28, "reserved");
_Static_assert(offsetof(struct hami_usage, used_bytes) == 32, "used_bytes");
_Static_assert(offsetof(struct hami_usage, peak_bytes) == 40, "peak_bytes");
_Static_assert(offsetof(struct hami_usage, oom_count) == 48, "oom_count");
_Static_assert(offsetof(struct hami_usage, reclaimed_bytes) == 56, "reclaimed_bytes");
_Static_assert(offsetof(struct hami_usage, gpu_busy_ns) == 64, "gpu_busy_ns");
_Static_assert(offsetof(struct hami_usage, throttled_ns) == 72, "throttled_ns");
_Static_assert(offsetof(struct hami_usage, device_oom_count) == 80, "device_oom_count");
_Static_assert(offsetof(struct hami_usage, time_full_at) == 88, "time_full_at");
_Static_assert(offsetof(struct hami_usage, time_used) == 96, "time_used");
_Static_assert(offsetof(struct hami_usage, latency_buckets) == 104, "latency_buckets");
_Static_assert(offsetof(struct hami_usage, latency_sum_ns) == 440, "latency_sum_ns");
_Static_assert(offsetof(struct hami_usage, slo_miss_count) == 448, "slo_miss_count");
_Static_assert(offsetof(struct hami_usage, pause_count) == 456, "pause_count");
_Static_assert(offsetof(struct hami_usage, paused_ns) == 464, "paused_ns");
_Static_assert(offsetof(struct hami_usage, floor_hit_count) == 472, "floor_hit_count");
_Static_assert(offsetof(struct hami_usage, first_context_unix_ns) == 480, "first_context_unix_ns");
_Static_assert(offsetof(struct hami_usage, first_launch_unix_ns) == 488, "first_launch_unix_ns");
_Static_assert(offsetof(struct hami_usage, last_use_unix_ns) == 496, "last_use_unix_ns");
_Static_assert(offsetof(struct hami_usage, more_unix_ns) == 504, "more_unix_ns");
_Static_assert(sizeof(struct hami_usage) == 4096, "size");

/* Totals of one step. The rows follow the head. A row is reused when its step has no live process. */
struct hami_usage_step {
	uint32_t step_id; /* Slurm's step id */
	uint32_t processes; /* live slots of this step; 0: the row is free */
	uint32_t cores_percent; /* share of the GPU's time that the step was given */
	uint32_t reserved; /* 0 */
	uint64_t used_bytes; /* sum over the step's slots */
	uint64_t peak_bytes; /* largest used_bytes so far */
	uint64_t oom_count; /* requests refused because of a limit */
	uint64_t time_full_at; /* as of the job, for the step's share */
	uint8_t pad0[16];
};
_Static_assert(offsetof(struct hami_usage_step, step_id) == 0, "step_id");
_Static_assert(offsetof(struct hami_usage_step, processes) == 4, "processes");
_Static_assert(offsetof(struct hami_usage_step, cores_percent) == 8, "cores_percent");
_Static_assert(offsetof(struct hami_usage_step, reserved) == 12, "reserved");
_Static_assert(offsetof(struct hami_usage_step, used_bytes) == 16, "used_bytes");
_Static_assert(offsetof(struct hami_usage_step, peak_bytes) == 24, "peak_bytes");
_Static_assert(offsetof(struct hami_usage_step, oom_count) == 32, "oom_count");
_Static_assert(offsetof(struct hami_usage_step, time_full_at) == 40, "time_full_at");
_Static_assert(sizeof(struct hami_usage_step) == 64, "size");

/* One process. The slots follow the steps. The process is alive while it holds the write lock (OFD) on byte slot_lock_base + index. */
struct hami_usage_slot {
	uint32_t state; /* 0 free, 1 in use */
	uint32_t pid; /* process id, in the process's own pid namespace */
	uint32_t step_row; /* index into the steps */
	uint32_t filled_permille; /* how much of its timeslices it uses, permille */
	uint64_t used_bytes; /* device memory held or requested */
	uint64_t peak_bytes; /* largest used_bytes so far */
	uint64_t gpu_busy_ns; /* GPU time used: on the compute engine with work outstanding, ns (gated: what its batches took) */
	uint64_t throttled_ns; /* time for which the compute limit delayed its work, ns */
	uint32_t swap_state; /* where its device memory is, see [swap_states] */
	uint32_t swap_count; /* how often it was moved to the host */
	uint64_t swapped_bytes; /* device memory that is off the GPU now: on the host, but for the stacks of its threads on the GPU */
	uint64_t busy_unix_ns; /* when it last had work on the GPU for a good part of its time, ns since 1970; 0: never */
	uint8_t pad0[56];
};
_Static_assert(offsetof(struct hami_usage_slot, state) == 0, "state");
_Static_assert(offsetof(struct hami_usage_slot, pid) == 4, "pid");
_Static_assert(offsetof(struct hami_usage_slot, step_row) == 8, "step_row");
_Static_assert(offsetof(struct hami_usage_slot, filled_permille) == 12, "filled_permille");
_Static_assert(offsetof(struct hami_usage_slot, used_bytes) == 16, "used_bytes");
_Static_assert(offsetof(struct hami_usage_slot, peak_bytes) == 24, "peak_bytes");
_Static_assert(offsetof(struct hami_usage_slot, gpu_busy_ns) == 32, "gpu_busy_ns");
_Static_assert(offsetof(struct hami_usage_slot, throttled_ns) == 40, "throttled_ns");
_Static_assert(offsetof(struct hami_usage_slot, swap_state) == 48, "swap_state");
_Static_assert(offsetof(struct hami_usage_slot, swap_count) == 52, "swap_count");
_Static_assert(offsetof(struct hami_usage_slot, swapped_bytes) == 56, "swapped_bytes");
_Static_assert(offsetof(struct hami_usage_slot, busy_unix_ns) == 64, "busy_unix_ns");
_Static_assert(sizeof(struct hami_usage_slot) == 128, "size");

/* Head of the history file, what the agent saw of the job in each minute. Root writes all of the file; the job's user reads it. */
struct hami_history {
	uint64_t magic; /* HAMIHIS1, little-endian */
	uint32_t record_size; /* bytes of the whole file */
	uint32_t job_id; /* Slurm's job id */
	uint32_t uid; /* the job's user */
	uint32_t gpu_count; /* GPUs of the job on this node; 0 until the agent knows them */
	uint64_t start_unix_ns; /* start of the run, ns since 1970, as in its usage record */
	uint64_t start_boot_ns; /* the same by CLOCK_BOOTTIME, from which minutes are counted */
	uint64_t mem_mib; /* memory of the job on these GPUs together, MiB; 0 until the agent knows it */
	uint8_t pad0[16];
};
_Static_assert(offsetof(struct hami_history, magic) == 0, "magic");
_Static_assert(offsetof(struct hami_history, record_size) == 8, "record_size");
_Static_assert(offsetof(struct hami_history, job_id) == 12, "job_id");
_Static_assert(offsetof(struct hami_history, uid) == 16, "uid");
_Static_assert(offsetof(struct hami_history, gpu_count) == 20, "gpu_count");
_Static_assert(offsetof(struct hami_history, start_unix_ns) == 24, "start_unix_ns");
_Static_assert(offsetof(struct hami_history, start_boot_ns) == 32, "start_boot_ns");
_Static_assert(offsetof(struct hami_history, mem_mib) == 40, "mem_mib");
_Static_assert(sizeof(struct hami_history) == 64, "size");

/* One minute of the job. The minutes follow the head: minute M since the start is in row M modulo the count, so the last 24 h are kept. */
struct hami_history_minute {
	uint32_t lap; /* M divided by the count, plus 1; 0: the row was not written */
	uint32_t mem_mib; /* most memory that the job's processes held in the minute, on all its GPUs together, MiB */
	uint32_t percent; /* of the time of the job's GPUs in the minute, 0 to 100 */
	uint32_t reserved; /* 0 */
};
_Static_assert(offsetof(struct hami_history_minute, lap) == 0, "lap");
_Static_assert(offsetof(struct hami_history_minute, mem_mib) == 4, "mem_mib");
_Static_assert(offsetof(struct hami_history_minute, percent) == 8, "percent");
_Static_assert(offsetof(struct hami_history_minute, reserved) == 12, "reserved");
_Static_assert(sizeof(struct hami_history_minute) == 16, "size");

/* The usage file as a whole. */
struct hami_usage_file {
	struct hami_usage head;
	struct hami_usage_step steps[HAMI_USAGE_STEP_COUNT];
	struct hami_usage_slot slots[HAMI_USAGE_SLOT_COUNT];
};

#endif
