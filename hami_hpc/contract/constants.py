# SPDX-License-Identifier: Apache-2.0
# Generated from hami_hpc/contract/contract.toml by `make generate`. Do not edit.
"""The contract's constants."""

from __future__ import annotations

TYPE_CHECKING = False  # prolog and epilog import this: docs/adr/021
if TYPE_CHECKING:
    from typing import Final

ABI_VERSION: Final = 2
REQUEST_NAME: Final = 'vgpu'
REQUEST_EXAMPLE: Final = '--gres=vgpu:mem=8G,cores=50'
REQUEST_MAX_LENGTH: Final = 4096
MODE_AUTO: Final = 'auto'
CORES_PROPORTIONAL: Final = 'proportional'
ISOLATION_HARD: Final = 'hard'
CORES_MIN: Final = 1
CORES_MAX: Final = 100
PERCENT_MIN: Final = 1
PERCENT_MAX: Final = 100
MEM_MIB_MAX: Final = 16777216
SLO_US_MIN: Final = 100
SLO_US_MAX: Final = 60000000
MIG_NAME_MAX: Final = 32
PRESET_NAME_MAX: Final = 32
SLICES_MAX: Final = 16
KEY_FORM: Final[dict[str, str]] = {
    'preset': "name of one of the site's presets",
    'count': "whole number from 1 to the site's slices_max",
    'type': 'GPU type, types with | between them, or ! and the types to avoid',
    'mem': 'whole number with M, G or T, or a percentage',
    'cores': 'whole number from 1 to 100',
    'mode': 'share, mps, mig or auto',
    'mig': 'name of a MIG profile of the GPU, such as 1g.18gb',
    'isolation': 'hard',
    'policy': 'cap, burst or none',
    'slo': 'whole number with us, ms or s, from 100us to 60s',
}
KEY_EXAMPLE: Final[dict[str, str]] = {
    'preset': 'preset=inference',
    'count': 'count=2',
    'type': 'type=h200|a100 or type=!v100',
    'mem': 'mem=8G, mem=8192M or mem=50%',
    'cores': 'cores=50',
    'mode': 'mode=share',
    'mig': 'mig=1g.18gb',
    'isolation': 'isolation=hard',
    'policy': 'policy=burst',
    'slo': 'slo=10ms',
}
MODES: Final[dict[str, int]] = {'share': 0, 'mps': 1, 'mig': 2}
POLICIES: Final[dict[str, int]] = {'cap': 0, 'burst': 1, 'none': 2}
MECHANISMS: Final[dict[str, int]] = {'auto': 0, 'duty': 1, 'slice': 2, 'gate': 3}
SWAP_STATES: Final[dict[str, int]] = {'gpu': 0, 'host': 1, 'busy': 2, 'contexts': 3, 'shared': 4, 'room': 5, 'driver': 6, 'returning': 7, 'wanted': 8, 'leaving': 9}
CLASS_NAMES: Final = ('std', 'lc', 'be')
CLASS_DEFAULT: Final = 'std'
CLASS_NAME_MAX: Final = 15
CLASS_PRIORITY_MAX: Final = 1000
CLASS_SLICE_US_MIN: Final = 10
CLASS_SLICE_US_MAX: Final = 100000
CLASS_RESERVED: Final = ('gpu', 'mps', 'shard', 'vgpu', 'vgpu_mem', 'vgpu_cores', 'no_consume')
DEFAULT_SHARD_MIB: Final = 256
DEFAULT_MEMORY_SCALING: Final = 1.0
DEFAULT_MEM: Final = '25%'
DEFAULT_CORES: Final = 25
DEFAULT_MAX_TENANTS: Final = 0
DEFAULT_BARE_SHARD: Final = 'refuse'
DEFAULT_MODES: Final = ['share']
DEFAULT_MIG_WASTE_PERCENT: Final = 20
DEFAULT_SLICES_MAX: Final = 1
MEMORY_SCALING_MAX: Final = 3.0
OVERSOLD_PART: Final = 0.9
GRES_SHARD: Final = 'shard'
GRES_CLASS: Final = 'vgpu'
GRES_MEM: Final = 'vgpu_mem'
GRES_CORES: Final = 'vgpu_cores'
GRES_SLO: Final = 'vgpu_slo'
GRES_FIXED: Final = 'vgpu_fixed'
PLACES: Final = 'abcdefghijklmnop'
FEATURE_MODE: Final = 'vgpu_{mode}'
FEATURE_TYPE: Final = 'vgpu_type_{type}'
FEATURE_POLICY: Final = 'vgpu_policy_{policy}'
ENV_VGPU: Final = 'HAMI_HPC_VGPU'
ENV_CLASS: Final = 'HAMI_HPC_CLASS'
ENV_MEM_MIB: Final = 'HAMI_HPC_MEM_MIB'
ENV_CORES: Final = 'HAMI_HPC_CORES'
ENV_SLO_US: Final = 'HAMI_HPC_SLO_US'
ENV_LIMITS: Final = 'HAMI_HPC_LIMITS'
ENV_LOG: Final = 'HAMI_HPC_LOG'
ENV_SWAP_DIR: Final = 'HAMI_HPC_SWAP_DIR'
ENV_CHECKSUMS: Final = 'HAMI_HPC_CHECKSUMS'
ENV_ANNOUNCE: Final = 'HAMI_HPC_ANNOUNCE'
FILE_JOB_LIMITS: Final = 'job.limits'
FILE_USAGE: Final = 'shared/usage'
FILE_STEP_LIMITS: Final = 'step-{step_id}.limits'
FILE_SLICE_JOB_LIMITS: Final = 'job.{slice}.limits'
FILE_SLICE_STEP_LIMITS: Final = 'step-{step_id}.{slice}.limits'
FILE_SLICE_USAGE: Final = 'shared/usage.{slice}'
FILE_SELF_SLICE_LIMITS: Final = 'step.{slice}.limits'
FILE_HISTORY: Final = 'history'
FILE_REFUSED: Final = 'refused'
FILE_WHOLE: Final = 'whole'
FILE_GPUS: Final = 'gpus'
FILE_TURNS: Final = 'turns'
FILE_RUN_DIR: Final = '/run/hami-hpc'
FILE_SELF: Final = '/run/hami-hpc/self'
FILE_SELF_LIMITS: Final = 'step.limits'
FILE_CONTAINER_PRELOAD: Final = 'container.preload'
FILE_CONTAINER_MOUNTS: Final = 'container.mounts'
FILE_MIG: Final = 'mig'
FILE_MIG_STATIC: Final = 'mig-static'
FILE_MPS: Final = 'mps'
FILE_MPS_CLIENTS: Final = 'hami-hpc-clients'
FILE_SLUID: Final = 'sluid'
FILE_TIMES: Final = 'times'
FILE_FIRST_STEP: Final = 'first-step'
FILE_STATE_DIR: Final = '/var/lib/hami-hpc'
FILE_CONFIG: Final = '/etc/hami-hpc/hami-hpc.toml'
SLOT_LOCK_BASE: Final = 1099511627776
JOB_STEP_ID: Final = 4294967295
LATENCY_BUCKETS: Final = 42
LATENCY_LEAST_NS: Final = 64000
SWAP_NEVER: Final = 0
SWAP_IN: Final = 1
SWAP_OUT: Final = 2
SWAP_SUSPENDED: Final = 3
SWAP_TURN: Final = 4
SWAP_WAIT: Final = 5

# Root writes it (the prolog the job's, SPANK a step's), everybody reads it. Both apply: the smaller limit counts. The record of a step that has all of its job's memory, or time, says no limit of it with mode=share (2^64 - 1 bytes, 100 %), so that the job's counts alone, also after a resize.
LIMITS_SIZE: Final = 4096
LIMITS_MAGIC: Final = 0x314D494C494D4148
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
LIMITS_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'magic': (0, 8, 'u'),
    'abi_version': (8, 4, 'u'),
    'record_size': (12, 4, 'u'),
    'sequence': (16, 8, 'u'),
    'job_id': (24, 4, 'u'),
    'step_id': (28, 4, 'u'),
    'uid': (32, 4, 'u'),
    'gpu_minor': (36, 4, 'u'),
    'mem_limit_bytes': (40, 8, 'u'),
    'gpu_total_bytes': (48, 8, 'u'),
    'cores_percent': (56, 4, 'u'),
    'policy': (60, 4, 'u'),
    'mode': (64, 4, 'u'),
    'mechanism': (68, 4, 'u'),
    'created_unix_ns': (72, 8, 'u'),
    'gpu_uuid': (80, 96, 's'),
    'class_name': (176, 16, 's'),
    'class_priority': (192, 4, 'u'),
    'slice_us': (196, 4, 'u'),
    'latency': (200, 4, 'u'),
    'floor_percent': (204, 4, 'u'),
    'slo_us': (208, 4, 'u'),
    'latency_others': (212, 4, 'u'),
    'turn_begin_permille': (216, 4, 'u'),
    'turn_length_permille': (220, 4, 'u'),
    'others_least_cores': (224, 4, 'u'),
    'others_capped': (228, 4, 'u'),
    'latency_above': (232, 4, 'u'),
    'beside_slice_us': (236, 4, 'u'),
    'step_begin_permille': (240, 4, 'u'),
    'in_step': (244, 4, 'u'),
    'slice_index': (248, 4, 'u'),
    'slice_count': (252, 4, 'u'),
    'max_processes': (256, 4, 'u'),
    'device_uuid': (260, 48, 's'),
    'device_percent': (308, 4, 'u'),
    'asked_mem_bytes': (312, 8, 'u'),
    'most_mem_bytes': (320, 8, 'u'),
    'asked_cores_percent': (328, 4, 'u'),
    'swap': (332, 4, 'u'),
    'swap_pinned_bytes': (336, 8, 'u'),
    'latency_cores': (344, 4, 'u'),
    'server_cores': (348, 4, 'u'),
    'latency_beyond': (352, 4, 'u'),
    'only_other_cores': (356, 4, 'u'),
}

# Head of the usage file. The job's own processes write it under `lock`; root reads it and trusts no value in it.
USAGE_SIZE: Final = 4096
USAGE_MAGIC: Final = 0x31455355494D4148
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
USAGE_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'magic': (0, 8, 'u'),
    'abi_version': (8, 4, 'u'),
    'record_size': (12, 4, 'u'),
    'lock': (16, 4, 'u'),
    'slot_count': (20, 4, 'u'),
    'processes': (24, 4, 'u'),
    'reserved': (28, 4, 'u'),
    'used_bytes': (32, 8, 'u'),
    'peak_bytes': (40, 8, 'u'),
    'oom_count': (48, 8, 'u'),
    'reclaimed_bytes': (56, 8, 'u'),
    'gpu_busy_ns': (64, 8, 'u'),
    'throttled_ns': (72, 8, 'u'),
    'device_oom_count': (80, 8, 'u'),
    'time_full_at': (88, 8, 'u'),
    'time_used': (96, 8, 'u'),
    'latency_buckets': (104, 336, 'a'),
    'latency_sum_ns': (440, 8, 'u'),
    'slo_miss_count': (448, 8, 'u'),
    'pause_count': (456, 8, 'u'),
    'paused_ns': (464, 8, 'u'),
    'floor_hit_count': (472, 8, 'u'),
    'first_context_unix_ns': (480, 8, 'u'),
    'first_launch_unix_ns': (488, 8, 'u'),
    'last_use_unix_ns': (496, 8, 'u'),
    'more_unix_ns': (504, 8, 'u'),
}

# Totals of one step. The rows follow the head. A row is reused when its step has no live process.
USAGE_STEP_SIZE: Final = 64
USAGE_STEP_COUNT: Final = 1024
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
USAGE_STEP_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'step_id': (0, 4, 'u'),
    'processes': (4, 4, 'u'),
    'cores_percent': (8, 4, 'u'),
    'reserved': (12, 4, 'u'),
    'used_bytes': (16, 8, 'u'),
    'peak_bytes': (24, 8, 'u'),
    'oom_count': (32, 8, 'u'),
    'time_full_at': (40, 8, 'u'),
}

# One process. The slots follow the steps. The process is alive while it holds the write lock (OFD) on byte slot_lock_base + index.
USAGE_SLOT_SIZE: Final = 128
USAGE_SLOT_COUNT: Final = 2048
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
USAGE_SLOT_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'state': (0, 4, 'u'),
    'pid': (4, 4, 'u'),
    'step_row': (8, 4, 'u'),
    'filled_permille': (12, 4, 'u'),
    'used_bytes': (16, 8, 'u'),
    'peak_bytes': (24, 8, 'u'),
    'gpu_busy_ns': (32, 8, 'u'),
    'throttled_ns': (40, 8, 'u'),
    'swap_state': (48, 4, 'u'),
    'swap_count': (52, 4, 'u'),
    'swapped_bytes': (56, 8, 'u'),
    'busy_unix_ns': (64, 8, 'u'),
}

# Head of the history file, what the agent saw of the job in each minute. Root writes all of the file; the job's user reads it.
HISTORY_SIZE: Final = 64
HISTORY_MAGIC: Final = 0x31534948494D4148
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
HISTORY_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'magic': (0, 8, 'u'),
    'record_size': (8, 4, 'u'),
    'job_id': (12, 4, 'u'),
    'uid': (16, 4, 'u'),
    'gpu_count': (20, 4, 'u'),
    'start_unix_ns': (24, 8, 'u'),
    'start_boot_ns': (32, 8, 'u'),
    'mem_mib': (40, 8, 'u'),
}

# One minute of the job. The minutes follow the head: minute M since the start is in row M modulo the count, so the last 24 h are kept.
HISTORY_MINUTE_SIZE: Final = 16
HISTORY_MINUTE_COUNT: Final = 1440
# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded
HISTORY_MINUTE_FIELDS: Final[dict[str, tuple[int, int, str]]] = {
    'lap': (0, 4, 'u'),
    'mem_mib': (4, 4, 'u'),
    'percent': (8, 4, 'u'),
    'reserved': (12, 4, 'u'),
}

# The epilog writes it (root, 0640), one file per job; a requeued job's later runs are JOB-START_NS.json. A job with several slices on the node has one record: numbers are the sums of its slices, but the latencies, which are the longest, and the times, which are the first or the last.
SPOOL_VERSION: Final = 1
# field: its type, int or text
SPOOL_FIELDS: Final[dict[str, str]] = {
    'version': 'int',
    'job_id': 'int',
    'uid': 'int',
    'class': 'text',
    'mode': 'text',
    'gpu_uuid': 'text',
    'gpu_count': 'int',
    'model': 'text',
    'mem_mib': 'int',
    'cores': 'int',
    'start': 'int',
    'end': 'int',
    'start_unix_ns': 'int',
    'end_unix_ns': 'int',
    'usage': 'text',
    'peak_bytes': 'int',
    'oom_count': 'int',
    'device_oom_count': 'int',
    'gpu_busy_ns': 'int',
    'throttled_ns': 'int',
    'observed_ns': 'int',
    'observed_peak_bytes': 'int',
    'observed_busy_ns': 'int',
    'observed_energy_mj': 'int',
    'observed_pcie_bytes': 'int',
    'observed_nvlink_bytes': 'int',
    'off_gpu_ns': 'int',
    'request_count': 'int',
    'latency_p50_us': 'int',
    'latency_p99_us': 'int',
    'latency_sum_ns': 'int',
    'slo_us': 'int',
    'slo_miss_count': 'int',
    'floor_hit_count': 'int',
    'pause_count': 'int',
    'disturbed_count': 'int',
    'prolog_began_unix_ns': 'int',
    'prolog_done_unix_ns': 'int',
    'first_step_unix_ns': 'int',
    'first_context_unix_ns': 'int',
    'first_launch_unix_ns': 'int',
    'last_use_unix_ns': 'int',
    'epilog_began_unix_ns': 'int',
    'gpu_fault': 'int',
    'history': 'text',
    'cluster': 'text',
}
SPOOL_DEFAULTS: Final[dict[str, int | str]] = {'gpu_count': 1, 'device_oom_count': 0, 'observed_ns': 0, 'observed_peak_bytes': 0, 'observed_busy_ns': 0, 'observed_energy_mj': 0, 'observed_pcie_bytes': 0, 'observed_nvlink_bytes': 0, 'off_gpu_ns': 0, 'request_count': 0, 'latency_p50_us': 0, 'latency_p99_us': 0, 'latency_sum_ns': 0, 'slo_us': 0, 'slo_miss_count': 0, 'floor_hit_count': 0, 'pause_count': 0, 'disturbed_count': 0, 'prolog_began_unix_ns': 0, 'prolog_done_unix_ns': 0, 'first_step_unix_ns': 0, 'first_context_unix_ns': 0, 'first_launch_unix_ns': 0, 'last_use_unix_ns': 0, 'epilog_began_unix_ns': 0, 'gpu_fault': 0, 'history': '', 'cluster': ''}

ERROR_PREFIX: Final = 'hami_hpc: '
GIVEN_MAX: Final = 40
ERRORS: Final[dict[str, str]] = {
    'E_TOO_LONG': '{key} is {given} bytes long; at most {allowed} are read. Example: {example}',
    'E_SPANK_ENV': 'the job has {given} bytes of environment for SPANK plugins (spank_job_env); at most {allowed} are allowed, because with more its prolog could not start and Slurm would drain the node',
    'E_CHARS': "--gres holds a character that is not plain printable ASCII: '{given}'. Example: {example}",
    'E_EMPTY': "'{given}' has nothing after the colon. Write vgpu alone for the defaults, or for example {example}",
    'E_KEY_UNKNOWN': "unknown key '{key}' in '{given}'; the keys of vgpu are {allowed}. Example: {example}",
    'E_KEY_DOUBLE': "'{key}' is given twice ('{given}'); once is allowed. Example: {example}",
    'E_VALUE_EMPTY': '{key} has no value; allowed: {allowed}. Example: {example}',
    'E_FORM': "'{given}' is not understood; a request is vgpu[:TYPE][:COUNT][:KEY=VALUE,...]. Example: {example}",
    'E_MEM_FORM': 'mem={given} is not understood; allowed is a {allowed}. Example: {example}',
    'E_MEM_UNIT': 'mem={given} has no unit; allowed is a {allowed}. Example: {example}',
    'E_MEM_FRACTION': 'mem={given} is a fraction; allowed is a {allowed}. Example: --gres=vgpu:mem=1536M instead of 1.5G',
    'E_MEM_RANGE': 'mem={given} is out of range; allowed is {allowed}. Example: {example}',
    'E_MEM_TOO_BIG': 'mem={given} is more than a GPU of {where} has; the largest, {model}, has {allowed}. Example: {example}',
    'E_CORES_FORM': 'cores={given} is not understood; allowed is a {allowed}. Example: {example}',
    'E_CORES_RANGE': 'cores={given} is out of range; allowed is a {allowed}. Example: {example}',
    'E_MODE': 'mode={given} is unknown; allowed is {allowed}. Example: {example}',
    'E_MODE_NOT_OFFERED': 'mode={given} is not offered by {where}; offered: {allowed}. Example: {example}',
    'E_MODE_CONFLICT': 'mode={given} and {key} cannot be combined, because {key} asks for a MIG instance; leave one of them out. Example: {example}',
    'E_MODE_FEATURES': "'{given}' (--constraint or --prefer) names the feature of another mode than the vgpu's, which is {allowed}; choose the mode in the request. Example: {example}",
    'E_MIG_FORM': 'mig={given} is not the name of a MIG profile; allowed is the {allowed}. Example: {example}',
    'E_MIG_NOT_HERE': '{key} needs a MIG instance, and {where} offers none; modes offered: {allowed}. Example: {example}',
    'E_MIG_UNKNOWN': 'mig={given} is not a profile of {where}; its profiles are: {allowed}. Example: {example}',
    'E_MIG_TOO_SMALL': '{key} is more than an instance of {given} has. The profiles of {where} are: {allowed}. Example: {example}',
    'E_MIG_TOO_BIG': 'no MIG profile of {where} has {given}; its profiles are: {allowed}. Example: {example}',
    'E_ISOLATION': 'isolation={given} is unknown; allowed is {allowed}. Example: {example}',
    'E_POLICY': 'policy={given} is unknown; allowed is {allowed}. Example: {example}',
    'E_POLICY_NOT_ALLOWED': 'policy={given} is not allowed in class {where}, whose policies are: {allowed}. Classes that allow it: {classes}. Example: {example}',
    'E_SLO_FORM': 'slo={given} is not understood; allowed is a {allowed}. Example: {example}',
    'E_SLO_RANGE': 'slo={given} is out of range; allowed is a {allowed}. Example: {example}',
    'E_SLO_NOT_ALLOWED': 'slo={given} needs a latency-critical class, and class {where} is none. Latency-critical classes: {classes}. Example: {example}',
    'E_COUNT': 'a count of {given} is too high: {allowed}. Ask for fewer, for more nodes with -N, or for whole GPUs with --gres=gpu:N. Example: {example}',
    'E_COUNT_FORM': "'{given}' is not a count of vgpus; a count is a whole number of at least 1, the slices on each node. Memory is mem=8G, time is cores=50. Example: {example}",
    'E_COUNT_MODE': 'a count of {given} and {key} cannot be combined, because only mode=share gives a job several vgpus per node; {allowed}. Example: {example}',
    'E_COUNT_CHANGE': "an update cannot change the count of a job's vgpus from {key} to {given}, because Slurm keeps each gres that an update does not name; cancel the job and submit it again",
    'E_GPU_TYPES': "'{given}' asks for GPUs of several models, and a node of this cluster has one model. Ask for one of them, or use a heterogeneous job (sbatch ... : ...). Example: --gres=gpu:{allowed}:1",
    'E_PLACES': "the job's vgpus are on GPUs of the types {given}, and {where} has {allowed}; Slurm cannot change the types of a job. Cancel it and submit it again",
    'E_PRESET_FORM': 'preset={given} is not the name of a preset; allowed is the {allowed}. Example: {example}',
    'E_PRESET': "preset={given} is not one of this cluster's presets, which are: {allowed}. Example: {example}",
    'E_PRESET_COUNT': 'a count of {given} and preset={key} cannot be combined, because a preset is one slice; write the keys of each slice instead. Example: {example}',
    'E_TYPE_FORM': "'{given}' is not a GPU type; a type has only letters, digits, '-' and '_', as in {example}",
    'E_TYPE_UNKNOWN': "GPU type '{given}' is not in {where}; its types are: {allowed}. Example: {example}",
    'E_TYPE_LIST': "type={given} is not understood; allowed is a {allowed}. Example: --gres='vgpu:mem=8G,type=h200|a100'",
    'E_TYPE_NONE': 'type={given} leaves no GPU type of {where}; its types are: {allowed}. Example: {example}',
    'E_TYPE_NEEDED': '{where} has GPUs of several sizes ({allowed}), and this request is not the same on all of them; name one. Example: {example}',
    'E_DOUBLE_VGPU': "vgpu is requested twice ('{given}'); once is allowed, and vgpu:2 asks for two equal slices. Example: {example}",
    'E_WITH_GPU': "vgpu and '{given}' cannot be combined: a job has either slices or whole GPUs. Use a heterogeneous job (sbatch ... : ...) for both. Example: {example}",
    'E_WITH_SHARD': "vgpu and '{given}' cannot be combined: hami_hpc adds the shards of a vgpu itself. Leave '{given}' out. Example: {example}",
    'E_EXCLUSIVE': 'vgpu and --exclusive cannot be combined: an exclusive job holds whole nodes with all their GPUs, so it would wait forever for a part of one. Leave one of them out. Example: {example}',
    'E_EXCLUSIVE_PARTITION': '{where} gives each job whole nodes with all their GPUs (OverSubscribe=EXCLUSIVE), so a vgpu cannot run there. Choose another partition, or ask for whole GPUs: --gres=gpu:1',
    'E_CLASS_NOT_ENFORCED': "the vgpu gets class std and not the class of QoS '{given}', because Slurm does not check here who may use a QoS. Administrator: set AccountingStorageEnforce=associations,qos ({allowed})",
    'E_BARE_SHARD': "'{given}' is not allowed on this cluster, because shards alone limit neither memory nor time; ask for a vgpu. Example: {example}",
    'E_RAW_UNITS': "'{given}' is set by hami_hpc itself and cannot be asked for. Example: {example}",
    'E_PER_GPU': '--{key}={given} is for whole GPUs and cannot be combined with a vgpu; {allowed}',
    'E_OPTION': '{key}={given} cannot carry a vgpu request; use {example}',
    'E_NO_VGPU_HERE': '{where} has no GPU that hami_hpc manages; partitions with such GPUs: {allowed}. Example: {example}',
    'E_SITE': "this cluster's hami_hpc settings cannot be read ({given}); ask the administrator to run hami-hpc render",
    'E_CLUSTER': 'srun for {given} cannot carry this request, because the GPUs of other clusters are not known here; give mem in M or G and cores, and one GPU type at most, or use sbatch or salloc. Example: {example}',
    'E_CLASS_CHANGE': "the QoS '{given}' is of another class than the job's vgpu, and Slurm cannot change a job's class; cancel the job and submit it again",
    'E_STEP_OUTSIDE': 'a step with a vgpu needs a job that has one; submit the job with {example}',
    'E_STEP_TOO_BIG': '{key}={given} is more than the job has ({allowed}); a step cannot have more. Leave {key} out to use all that the job has',
    'E_FEATURES': '--constraint={given} cannot be combined with the features that the GPUs asked for need; write a constraint that includes {allowed}',
    'E_INTERNAL': 'the vgpu request could not be handled ({given}); other jobs are not affected. Tell the administrator',
    'E_UPDATE_KEEPS': 'an update to gres={given} would leave parts of the vgpu in the job, because Slurm keeps each gres that an update does not name; name the vgpu too, or cancel the job and submit it again. Example: gres=vgpu:mem=8G,cores=50',
    'E_UPDATE': 'the vgpu request of a job that is not pending cannot be changed; cancel the job and submit it again',
}
