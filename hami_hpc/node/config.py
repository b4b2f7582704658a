# SPDX-License-Identifier: Apache-2.0
"""The site's settings: the one reader of hami-hpc.toml (docs/architecture.md, "The site's settings").

Prolog and epilog read the file at every job, so this module imports little (docs/adr/021): tomllib only for a file that
plain_toml cannot read, and difflib only to write an error message.
"""

from __future__ import annotations

from hami_hpc import installed
from hami_hpc.contract import constants as c
from hami_hpc.core import plain_toml
from hami_hpc.core.sizes import GpuSize, gpu_size
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError
from hami_hpc.node import settings_faults
from hami_hpc.node.settings_text import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hami_hpc.core.grant import JobUnits
    from hami_hpc.core.site import Site

VERSION = 1
PRELOADS = ("env", "ldso")
BARE_SHARD = ("refuse", "translate", "allow")
QOS_ENFORCED = ("auto", "yes")
DEFAULT_FLOOR, FLOOR_MAX = 5, 50  # percent
MODE_FAILURES, MODE_WINDOW_S, MODE_OUT_S = 3, 1800, 3600
DAY_S = 86400
TURN_S = 60
LC_PRIORITY = 100
TENANTS_MAX = GPUS_MAX = 1024  # of a GPU; of a node, for which Slurm's own limit is MAX_GRES_BITMAP
MPS_CONTROL, MPS_STATIC = "/usr/bin/nvidia-cuda-mps-control", ("auto", "never")
class_name_fault = settings_faults.class_name


class ClassSettings(NamedTuple):
    """One class of service: the names of its QoS, and how the share of time of its jobs is kept.

    `policies` are those that a job may ask for; `policy` is that of a job that asks for none. `floor` is the percentage
    of the GPU's time that its latency-critical jobs leave to others, 0 for a class that is not. `slice_us` is the
    timeslice of its jobs on the GPU, 0: it follows from their cores. `priority` orders latency-critical classes.
    `max_processes` is how many processes may use a slice at once, 0: any number. `swap` is whether root may move the
    device memory of its jobs to the host while they run (docs/adr/077), `swap_pinned_mib` how much of the host's memory
    each of their processes keeps page-locked for that (docs/adr/090).
    """

    qos: tuple[str, ...]
    policy: str
    policies: tuple[str, ...]
    latency: bool
    floor: int
    slice_us: int = 0
    priority: int = 0
    max_processes: int = 0
    swap: bool = False
    swap_pinned_mib: int = 0


class Settings(NamedTuple):
    """The settings of the whole file, with defaults filled in. Memory is in MiB; paths are absolute."""

    path: str
    shard_mib: int
    memory_scaling: float
    default_mem: str
    default_cores: int | str
    bare_shard: str
    qos_enforced: str
    preload: str
    modes: tuple[str, ...]
    run_dir: str
    state_dir: str
    interposer: str
    driver_root: str  # where the driver's /proc and /dev are
    classes: Mapping[str, ClassSettings]
    gpu_models: Mapping[str, int]
    partitions: Mapping[str, tuple[str, ...]]
    qos: Mapping[str, object]  # [qos.*] as it is written: node/qos_settings.py reads it, and no prolog does
    agent: Mapping[str, object] | None = None  # [agent], likewise for node/agent_settings.py; None: no agent runs here
    mig_profiles: Mapping[str, Mapping[str, str]] = {}
    mig_waste_percent: int = c.DEFAULT_MIG_WASTE_PERCENT
    mig_nodes: tuple[str, ...] = ()  # hostlists of the nodes whose GPUs are in MIG mode
    mps_control: str = MPS_CONTROL
    mps_multi_user: bool = False  # one MPS server for all users of a GPU
    mps_static: bool = False  # a job has an SM partition of its own where the driver has them
    mode_failures: int = MODE_FAILURES  # of a mode's backend, until the mode is out of the node's features; 0: drain
    mode_window_s: int = MODE_WINDOW_S
    mode_out_s: int = MODE_OUT_S
    slices_max: int = c.DEFAULT_SLICES_MAX  # most slices of a job on a node; above 1 the types of GPUs are places
    partition_gpus: Mapping[str, int] = {}  # of those that say it: GPUs of the largest node
    max_tenants: int = c.DEFAULT_MAX_TENANTS  # most slices on a GPU; 0: any number
    turn_s: int = TURN_S  # least length of a turn on a GPU whose memory is oversold
    presets: Mapping[str, object] = {}  # [presets.*] as it is written: node/preset_settings.py reads it
    placement: Mapping[str, object] = {}  # [placement], likewise for node/placement_settings.py

    def gpu_size(self, model: str) -> GpuSize:
        """Returns the sizes of one GPU of a model: of its largest slice, and of what Slurm has of it."""
        return gpu_size(self.gpu_models[model], self.memory_scaling, self.shard_mib)

    def cores_of_gpu(self) -> frozenset[int]:
        """Returns gres/vgpu_cores of one GPU: one number for each model that differs in it."""
        return frozenset(self.gpu_size(model).sold_cores for model in self.gpu_models) or frozenset((c.CORES_MAX,))

    def class_of_job(self, units: JobUnits) -> ClassSettings:
        """Returns the class of a job. Raises NodeError for one that these settings do not have."""
        known = self.classes.get(units.service_class)
        if known is None:
            raise NodeError(
                f"job {units.job_id} is of class '{units.service_class}', which {self.path} of this node does not "
                "have. Copy the controller's settings here, run hami-hpc render and restart slurmd"
            )
        return known

    def site(self) -> Site:
        """Returns the settings that decide requests, in the type that hami_hpc.core uses."""
        from hami_hpc.core.site import Site
        from hami_hpc.node import mig_settings, preset_settings

        mig = {model: mig_settings.offered(self, model) for model in self.gpu_models} if "mig" in self.modes else {}
        return Site(
            shard_mib=self.shard_mib,
            memory_scaling=self.memory_scaling,
            default_mem=self.default_mem,
            default_cores=self.default_cores,
            bare_shard=self.bare_shard,
            qos_enforced=self.qos_enforced,
            modes=self.modes,
            classes={name: entry.qos for name, entry in self.classes.items()},
            policies={name: entry.policies for name, entry in self.classes.items()},
            latency=tuple(name for name, entry in self.classes.items() if entry.latency),
            gpu_models=dict(self.gpu_models),
            partitions=dict(self.partitions),
            mig={model: profiles for model, profiles in mig.items() if profiles},
            mig_waste_percent=self.mig_waste_percent,
            slices_max=self.slices_max,
            partition_gpus=dict(self.partition_gpus),
            max_tenants=self.max_tenants,
            presets=preset_settings.read_presets(self),
            fixed=tuple(name for name, entry in self.classes.items() if self.memory_scaling > 1 and not entry.swap),
        )


def settings_path(environment: Mapping[str, str]) -> str:
    """Returns the path for commands that people run: $HAMI_HPC_CONFIG, else the default. Not for prolog and epilog."""
    return environment.get("HAMI_HPC_CONFIG") or installed.CONFIG or c.FILE_CONFIG


def load_settings(path: str) -> Settings:
    """Reads and checks the file. Raises NodeError, which names the file and the key, for the first fault."""
    try:
        return parse_settings(_parse(read_text(path)), path)
    except OSError as error:
        raise NodeError(
            f"{path} cannot be read ({error.strerror}). Every node needs the site's settings there"
        ) from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and int's own for thousands of digits
        raise NodeError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise NodeError(f"{path} is nested too deeply for settings of hami_hpc's") from None


def _parse(text: str) -> dict[str, Any]:
    """Parses the file by plain_toml, or by tomllib where plain_toml cannot read it."""
    table = plain_toml.read(text)
    if table is not None:
        return table
    import tomllib

    return tomllib.loads(text)


class _Table:
    """A TOML table while it is read: each key is taken once, and close() refuses the keys that are left, by name."""

    def __init__(self, path: str, name: str, value: object) -> None:
        self.path, self.name = path, name
        if not isinstance(value, dict):
            from hami_hpc.node.settings_lines import where

            raise NodeError(f"{where(path, name)} is not a table")
        self.left: dict[str, Any] = dict(value)
        self.known: list[str] = []

    def take(self, key: str, default: object = None) -> Any:
        self.known.append(key)
        return self.left.pop(key, default)

    def text(self, key: str, default: str, allowed: Iterable[str] = ()) -> str:
        value = self.take(key, default)
        choices = tuple(allowed)
        if not isinstance(value, str) or (choices and value not in choices):
            self.refuse(key, value, " or ".join(f'"{choice}"' for choice in choices) or "a text")
        return str(value)

    def directory_or_file(self, key: str, default: str) -> str:
        value = self.text(key, default)
        # Paths are written unquoted to Slurm's and Lua's files, so no character is allowed that needs quotes there.
        if not value.startswith("/") or any(ch.isspace() or ch in "\"'#,=\\" or not ch.isprintable() for ch in value):
            self.refuse(key, value, "an absolute path without spaces, quotes, commas, '=', '#' or backslashes")
        return value.rstrip("/") or "/"

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.take(key, default)
        if type(value) is not int or not least <= value <= most:
            self.refuse(key, value, f"a whole number from {least} to {most}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if type(value) is not bool:
            self.refuse(key, value, "true or false")
        return bool(value)

    def names(self, key: str, default: Iterable[str], allowed: Iterable[str] | None = None) -> tuple[str, ...]:
        value = self.take(key, list(default))
        choices = None if allowed is None else tuple(allowed)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.refuse(key, value, "a list of names")
        for item in value:
            if choices is not None and item not in choices:
                self.refuse(key, item, "a list of: " + (", ".join(choices) or "nothing, as none are defined"))
        return tuple(value)

    def refuse(self, key: str, value: object, allowed: str) -> None:
        from hami_hpc.node.settings_lines import refused

        raise refused(self.path, self.name, key, value, allowed)

    def close(self) -> None:
        """Raises NodeError when a key was not taken. The message names the first such key and the nearest known one."""
        for key in self.left:
            from hami_hpc.node.settings_lines import unknown

            raise unknown(self.path, self.name, key, self.known)


def parse_settings(document: Mapping[str, object], path: str) -> Settings:
    """Returns the settings of a parsed document; `path` is for messages. Raises NodeError as load_settings does."""
    top = _Table(path, "", document)
    version = top.take("version")
    if version != VERSION or type(version) is not int:
        given = str(version)[: c.GIVEN_MAX]
        raise NodeError(f"{path}: version = {VERSION} must be there (found: {given!r}); this hami_hpc reads no other")
    vgpu = _Table(path, "vgpu", top.take("vgpu", {}))
    paths = _Table(path, "paths", top.take("paths", {}))
    scaling = vgpu.take("memory_scaling", c.DEFAULT_MEMORY_SCALING)
    if type(scaling) not in (int, float) or not 0.1 <= scaling <= c.MEMORY_SCALING_MAX:
        vgpu.refuse("memory_scaling", scaling, f"a number from 0.1 to {c.MEMORY_SCALING_MAX:g}")
    mps = _Table(path, "mps", top.take("mps", {}))
    models, mig_profiles = _models(path, top.take("gpu_models", {}))
    partitions, partition_gpus = _partitions(path, top.take("partitions", {}), models)
    max_processes = vgpu.whole("max_processes", 0, 0, c.USAGE_SLOT_COUNT)
    settings = Settings(
        path=path,
        shard_mib=vgpu.whole("shard_mib", c.DEFAULT_SHARD_MIB, 1, c.MEM_MIB_MAX),
        memory_scaling=float(scaling),
        default_mem=vgpu.text("default_mem", c.DEFAULT_MEM),
        default_cores=_default_cores(vgpu),
        bare_shard=vgpu.text("bare_shard", c.DEFAULT_BARE_SHARD, BARE_SHARD),
        qos_enforced=vgpu.text("qos_enforced", "auto", QOS_ENFORCED),
        preload=vgpu.text("preload", "ldso", PRELOADS),
        modes=vgpu.names("modes", ("share",), c.MODES),
        run_dir=paths.directory_or_file("run_dir", c.FILE_RUN_DIR),
        state_dir=paths.directory_or_file("state_dir", c.FILE_STATE_DIR),
        interposer=paths.directory_or_file("interposer", f"{installed.LIB_DIR}/libhami-hpc.so"),
        driver_root=paths.directory_or_file("driver_root", "/"),
        classes=_classes(path, top.take("classes", {}), models, max_processes),
        gpu_models=models,
        partitions=partitions,
        qos=_Table(path, "qos", top.take("qos", {})).left,
        agent=_agent(path, top.take("agent")),
        mig_profiles=mig_profiles,
        mig_waste_percent=vgpu.whole("mig_waste_percent", c.DEFAULT_MIG_WASTE_PERCENT, 0, 100),
        mig_nodes=vgpu.names("mig_nodes", ()),
        mps_control=mps.directory_or_file("control", MPS_CONTROL),
        mps_multi_user=mps.flag("multi_user", False),
        mps_static=mps.text("static_partitions", "never", MPS_STATIC) == "auto",
        mode_failures=vgpu.whole("mode_failures", MODE_FAILURES, 0, 100),
        mode_window_s=vgpu.whole("mode_window_s", MODE_WINDOW_S, 60, DAY_S),
        mode_out_s=vgpu.whole("mode_out_s", MODE_OUT_S, 60, DAY_S),
        slices_max=vgpu.whole("slices_max", c.DEFAULT_SLICES_MAX, 1, c.SLICES_MAX),
        partition_gpus=partition_gpus,
        turn_s=vgpu.whole("turn_s", TURN_S, 1, DAY_S),
        max_tenants=vgpu.whole("max_tenants", c.DEFAULT_MAX_TENANTS, 0, TENANTS_MAX),
        presets=_Table(path, "presets", top.take("presets", {})).left,
        placement=_Table(path, "placement", top.take("placement", {})).left,
    )
    for table in (vgpu, paths, mps, top):
        table.close()
    if not settings.modes:
        vgpu.refuse("modes", [], f"at least one of: {', '.join(c.MODES)}")
    fault = settings_faults.places(settings.slices_max, settings.modes, models)
    if fault:
        vgpu.refuse("slices_max", settings.slices_max, fault)
    has_agent, has_swap = settings.agent is not None, any(entry.swap for entry in settings.classes.values())
    fault = settings_faults.oversold(float(scaling), has_agent, settings.modes, settings.slices_max, has_swap)
    if fault:
        vgpu.refuse("memory_scaling", scaling, fault)
    for hosts in settings.mig_nodes:
        if not settings_faults.is_host_list(hosts):
            vgpu.refuse("mig_nodes", hosts, 'host lists as Slurm writes them, such as "gpu[03-04],gpu7"')
    for model in models:
        if settings.gpu_size(model).slice_shards < 1:
            raise NodeError(f"{path}: shard_mib = {settings.shard_mib} is more than a whole {model}; make it smaller")
    return settings


def _default_cores(vgpu: _Table) -> int | str:
    value = vgpu.take("default_cores", c.DEFAULT_CORES)
    if value != c.CORES_PROPORTIONAL and (type(value) is not int or not c.CORES_MIN <= value <= c.CORES_MAX):
        least, most = c.CORES_MIN, c.CORES_MAX
        vgpu.refuse("default_cores", value, f'a whole number from {least} to {most}, or "{c.CORES_PROPORTIONAL}"')
    return value  # type: ignore[no-any-return]


def _agent(path: str, value: object) -> dict[str, Any] | None:
    return None if value is None else _Table(path, "agent", value).left


def _name(path: str, table: str, name: str) -> str:
    if not name or not settings_faults.NAME_CHARACTERS.issuperset(name):
        raise NodeError(f"{path}: {name[: c.GIVEN_MAX]!r} in [{table}] is no name: letters, digits, '-' and '_' only")
    return name


def _classes(path: str, value: object, models: Iterable[str], max_processes: int) -> dict[str, ClassSettings]:
    table = _Table(path, "classes", value)
    classes: dict[str, ClassSettings] = {}
    owner: dict[str, str] = {}
    for name in dict.fromkeys((*c.CLASS_NAMES, *table.left)):
        fault = class_name_fault(name, models)
        if fault:
            from hami_hpc.node.settings_lines import where

            place = where(path, "classes", name)
            raise NodeError(f"{place}: {name[: c.GIVEN_MAX]!r} cannot be the name of a class: {fault}")
        classes[name] = _class(_Table(path, f"classes.{name}", table.take(name, {})), name, max_processes)
        for qos in classes[name].qos:
            if owner.setdefault(qos.lower(), name) != name:
                other = owner[qos.lower()]
                raise NodeError(f"{path}: QoS '{qos}' is in [classes.{other}] and [classes.{name}]; one class a QoS")
    return classes


def _class(entry: _Table, name: str, max_processes: int) -> ClassSettings:
    policy = entry.text("policy", "cap" if name == c.CLASS_DEFAULT else "burst", c.POLICIES)
    latency = entry.flag("latency", name == "lc")
    floor = entry.whole("floor", DEFAULT_FLOOR, 0, FLOOR_MAX) * latency
    policies = entry.names("policies", (policy,), c.POLICIES)
    if policy not in policies:
        entry.refuse("policies", list(policies), f'a list with the class\'s own policy, "{policy}"')
    slice_us = entry.whole("slice_us", 0, 0, c.CLASS_SLICE_US_MAX)
    if 0 < slice_us < (least_us := c.CLASS_SLICE_US_MIN):
        entry.refuse("slice_us", slice_us, f"0 (it follows from cores) or from {least_us} to {c.CLASS_SLICE_US_MAX}")
    priority = entry.whole("priority", LC_PRIORITY if name == "lc" else 0, 0, c.CLASS_PRIORITY_MAX)
    qos_names = entry.names("qos", () if name == c.CLASS_DEFAULT else (name,))
    processes = entry.whole("max_processes", max_processes, 0, c.USAGE_SLOT_COUNT)
    swap, pinned_mib = entry.flag("swap", False), entry.whole("swap_pinned_mib", 0, 0, c.MEM_MIB_MAX)
    if swap and latency:
        entry.refuse("swap", swap, "false: a latency-critical job is never moved")
    if pinned_mib and not swap:
        entry.refuse("swap_pinned_mib", pinned_mib, "0 without swap = true: nothing of its jobs is moved")
    entry.close()
    return ClassSettings(qos_names, policy, policies, latency, floor, slice_us, priority, processes, swap, pinned_mib)


def _models(path: str, value: object) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    """Returns the MiB of each model, and the MIG profiles of those that have any."""
    table = _Table(path, "gpu_models", value)
    models: dict[str, int] = {}
    profiles: dict[str, dict[str, str]] = {}
    for name in list(table.left):
        entry = _Table(path, f"gpu_models.{_name(path, 'gpu_models', name)}", table.take(name))
        models[name] = entry.whole("total_mib", 0, 1, c.MEM_MIB_MAX)
        mig = _Table(path, f"gpu_models.{name}.mig_profiles", entry.take("mig_profiles", {}))
        listed = {profile: mig.text(profile, "") for profile in list(mig.left)}
        profiles |= {name: listed} if listed else {}
        entry.close()
    return models, profiles


def _partitions(
    path: str, value: object, models: Mapping[str, int]
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """Returns the models of each partition, and the GPUs of its largest node, of those that say it."""
    table = _Table(path, "partitions", value)
    partitions: dict[str, tuple[str, ...]] = {}
    gpus: dict[str, int] = {}
    for name in list(table.left):
        entry = _Table(path, f"partitions.{name}", table.take(name))
        partitions[name] = entry.names("gpu_models", (), models)
        count = entry.whole("gpus", 0, 0, GPUS_MAX)
        gpus |= {name: count} if count else {}
        entry.close()
    return partitions, gpus
