# SPDX-License-Identifier: Apache-2.0
"""Makes a job's Grants, one for each of its slices of a GPU of this node, from the environment of prolog and epilog.

Pure. Most jobs have one slice. Those with several have as many GPUs, and the same of each (docs/adr/055)."""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import MAX_INDEX, Gpu
from hami_hpc.core.sizes import is_oversold, largest_mib, sold_mib
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import JobError, NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

CLASS_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz")
CLASS_REST = CLASS_FIRST | frozenset("0123456789_")
VGPU_VARIABLES = (c.ENV_VGPU, c.ENV_CLASS, c.ENV_MEM_MIB, c.ENV_CORES)
UINT32_MAX = 0xFFFFFFFF


class JobUnits(NamedTuple):
    """The units that Slurm's credential gives the job on this node: MiB and percent of each slice.

    `gpu_index` is Slurm's index of the GPU of a single slice; of several slices Slurm tells the prolog one GPU alone.
    """

    job_id: int
    uid: int
    gpu_index: int
    service_class: str
    mem_mib: int
    cores_percent: int
    slo_us: int = 0  # 0: none was asked for
    slice_count: int = 1
    node_count: int = 1


class Grant(NamedTuple):
    """One job's slice of one GPU of this node. `created_unix_ns` tells two grants of the same job id apart.

    The grants of a job with several slices differ in `slice_index` and in what is its GPU's, and in nothing else.

    `latency` is 1 for a latency-critical job, which leaves `floor_percent` of the GPU's time to others; else both are
    0. `class_priority` and `slice_us` are those of the job's class; `slice_us` 0: it follows from the job's cores.
    `slo_us` is what the job asked for, 0 for none.

    `mem_mib` and `cores_percent` are what it has now. The last three fields are of a job that was resized, else 0: what
    its units say, and the most memory that it had.
    """

    job_id: int
    uid: int
    gpu_uuid: str
    gpu_minor: int
    gpu_total_mib: int
    model: str
    mem_mib: int
    cores_percent: int
    service_class: str
    policy: str
    mode: str
    created_unix_ns: int
    latency: int = 0
    floor_percent: int = 0
    class_priority: int = 0
    slice_us: int = 0
    slo_us: int = 0
    slice_index: int = 0  # in the order of Slurm's indices of the GPUs
    slice_count: int = 1
    in_step: int = 0  # core/in_step.py: whether its slices work in step, and whether on other nodes too
    max_processes: int = 0  # processes that may use the slice at once; 0: any number
    asked_mem_mib: int = 0
    asked_cores_percent: int = 0
    most_mem_mib: int = 0

    def same_slice(self, other: Grant) -> bool:
        """Returns whether both are of the same user and units, on the same GPU. Ignores when each was made, and
        whether it was resized since."""
        one, two = self.asked(), other.asked()
        return all(getattr(one, name) == getattr(two, name) for name in SLICE_FIELDS)

    def asked(self) -> Grant:
        """Returns the grant as it was before it was resized."""
        if not self.asked_mem_mib:
            return self
        return self._replace(
            mem_mib=self.asked_mem_mib,
            cores_percent=self.asked_cores_percent,
            asked_mem_mib=0,
            asked_cores_percent=0,
            most_mem_mib=0,
        )

    def resized(self, mem_mib: int, cores_percent: int) -> Grant:
        """Returns the grant with another size."""
        return self._replace(
            mem_mib=mem_mib,
            cores_percent=cores_percent,
            asked_mem_mib=self.asked().mem_mib,
            asked_cores_percent=self.asked().cores_percent,
            most_mem_mib=max(self.most_mem(), mem_mib),
        )

    def most_mem(self) -> int:
        """Returns the most MiB that it had since it was made."""
        return self.most_mem_mib or self.mem_mib


# What makes a slice: not when it was granted, nor what follows from the GPU or from other grants.
SLICE_FIELDS = (
    "job_id",
    "uid",
    "gpu_uuid",
    "mem_mib",
    "cores_percent",
    "service_class",
    "policy",
    "mode",
    "latency",
    "floor_percent",
    "class_priority",
    "slice_us",
    "slo_us",
    "slice_index",
    "slice_count",
    "in_step",
    "max_processes",
)


def same_slices(one: Sequence[Grant], other: Sequence[Grant]) -> bool:
    """Returns whether both lists, in the order of the slices, give the same slices. Ignores when each was made."""
    return len(one) == len(other) and all(a.same_slice(b) for a, b in zip(one, other, strict=True))


def by_job(grants: Iterable[Grant]) -> dict[int, tuple[Grant, ...]]:
    """Returns the slices of each job in their order, by job id."""
    jobs: dict[int, list[Grant]] = {}
    for grant in sorted(grants, key=lambda one: (one.job_id, one.slice_index)):
        jobs.setdefault(grant.job_id, []).append(grant)
    return {job_id: tuple(slices) for job_id, slices in jobs.items()}


def total(grants: Sequence[Grant]) -> Grant:
    """Returns all slices of a job as one grant, as usage records have it: GPUs separated by commas, sums of MiB and
    percent. A single slice is returned as it is."""
    if len(grants) == 1:
        return grants[0]
    return grants[0]._replace(
        gpu_uuid=",".join(grant.gpu_uuid for grant in grants),
        gpu_total_mib=sum(grant.gpu_total_mib for grant in grants),
        mem_mib=sum(grant.mem_mib for grant in grants),
        cores_percent=sum(grant.cores_percent for grant in grants),
        asked_mem_mib=sum(grant.asked_mem_mib for grant in grants),
        asked_cores_percent=sum(grant.asked_cores_percent for grant in grants),
        most_mem_mib=sum(grant.most_mem_mib for grant in grants),
    )


def is_class_name(text: str) -> bool:
    """Returns whether a text has the form of a class's name, which is also a gres type and a field of a record."""
    return 1 <= len(text) <= c.CLASS_NAME_MAX and text[0] in CLASS_FIRST and CLASS_REST.issuperset(text)


def wants_vgpu(environment: Mapping[str, str]) -> bool:
    """Returns whether Slurm gave the job any of the vgpu variables."""
    return any(environment.get(name) for name in VGPU_VARIABLES)


def parse_id(environment: Mapping[str, str], name: str) -> int:
    """Reads a job id or uid that slurmd sets. Raises NodeError when it is missing or not a 32-bit number."""
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit()) or int(text) > UINT32_MAX:
        raise NodeError(
            f"{name} is '{text[: c.GIVEN_MAX]}', not a number: this must be run by slurmd as its Prolog/Epilog",
        )
    return int(text)


def whole_gpus(environment: Mapping[str, str], cores_of_gpu: Collection[int] = (c.CORES_MAX,)) -> str:
    """Returns Slurm's list of the GPUs of a job that holds the whole node (--exclusive, OverSubscribe=EXCLUSIVE).

    `cores_of_gpu` is how many cores a GPU has for all its slices: more than 100 where its memory is oversold, and then
    a number for each of the site's models (Settings.cores_of_gpu).

    Returns "" for any other job. Slurm gives a whole-node job all units of every gres except shards: all cores of each
    of its GPUs, and as many vgpu as the node has shards, once for each class. A job with several slices can have as
    many cores, but at most c.SLICES_MAX vgpu. A node can have so few vgpu too; but its whole count of vgpu_slo is then
    above the largest slo as soon as it has two shards, without which no job has two slices. These values come from the
    signed credential. SLURM_JOB_GPUS lists the GPUs of the last type alone where a node's GPUs are of several types;
    the job has all of them then. A site that oversells memory has no such nodes.
    """
    vgpu, cores = environment.get(c.ENV_VGPU, ""), environment.get(c.ENV_CORES, "")
    gpus, slo = environment.get("SLURM_JOB_GPUS", ""), environment.get(c.ENV_SLO_US, "") or "0"
    if not all(text.isascii() and text.isdigit() for text in (vgpu, cores, slo)):
        return ""
    if max(len(vgpu), len(cores)) > 12 or len(slo) > 18:
        return ""
    if not gpus or int(vgpu) <= 1 or (int(vgpu) <= c.SLICES_MAX and int(slo) <= c.SLO_US_MAX):
        return ""
    listed = len(gpus.split(","))
    if int(cores) in {listed * each for each in cores_of_gpu} and listed <= MAX_INDEX:
        return gpus
    gpu_count, rest = divmod(int(cores), c.CORES_MAX)
    if rest or set(cores_of_gpu) != {c.CORES_MAX} or not listed < gpu_count <= MAX_INDEX:
        return ""
    return ",".join(map(str, range(gpu_count)))


def parse_units(environment: Mapping[str, str]) -> JobUnits | None:
    """Returns the job's units, or None for a job without vgpu.

    Raises NodeError when the variables are incomplete or malformed (a plugin is missing or of another version), and
    JobError when they are well-formed but ask for what a node cannot give (slices that are not equal, too many).
    """
    if not wants_vgpu(environment):
        return None
    job_id = parse_id(environment, "SLURM_JOB_ID")
    missing = [name for name in VGPU_VARIABLES if not environment.get(name)]
    if missing:
        raise NodeError(
            f"job {job_id} has a vgpu but {', '.join(missing)} did not reach its prolog: either a gres plugin of "
            "hami_hpc is missing or was built for another Slurm (rebuild and install the plugins here and on the "
            "controller, restart slurmd), or job_submit.lua did not translate the request (slurm.conf lacks "
            "JobSubmitPlugins=lua or the file its lines of hami_hpc). Check with hami-hpc doctor",
        )
    numbers = {name: environment[name] for name in (c.ENV_VGPU, c.ENV_MEM_MIB, c.ENV_CORES)}
    for name, text in numbers.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 12):
            raise NodeError(
                f"job {job_id}: {name} is '{text[: c.GIVEN_MAX]}', not a number. The gres plugins set it: "
                "check them with hami-hpc doctor",
            )
    service_class = environment[c.ENV_CLASS]
    if not is_class_name(service_class):
        raise NodeError(
            f"job {job_id}: {c.ENV_CLASS} is '{service_class[: c.GIVEN_MAX]}', not the name of a class. The gres "
            "plugins set it: check them with hami-hpc doctor",
        )
    slice_count = _count(job_id, int(numbers[c.ENV_VGPU]))
    return JobUnits(
        job_id=job_id,
        uid=parse_id(environment, "SLURM_JOB_UID"),
        gpu_index=_gpu_index(environment.get("SLURM_JOB_GPUS", ""), job_id, slice_count),
        service_class=service_class,
        mem_mib=_of_each(job_id, c.ENV_MEM_MIB, int(numbers[c.ENV_MEM_MIB]), slice_count, c.MEM_MIB_MAX),
        cores_percent=_of_each(job_id, c.ENV_CORES, int(numbers[c.ENV_CORES]), slice_count, c.CORES_MAX),
        slo_us=_slo(job_id, environment.get(c.ENV_SLO_US, "")),
        slice_count=slice_count,
        node_count=_node_count(environment.get("SLURM_JOB_NUM_NODES", "")),
    )


def _node_count(text: str) -> int:
    """Returns the nodes of the job; 1 where this Slurm does not say, as nobody's limits depend on it."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 9 else 1


def _slo(job_id: int, text: str) -> int:
    """Returns the job's slo in us, 0 for none: gres/vgpu_slo sets the variable only for a job that holds one."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and c.SLO_US_MIN <= int(text) <= c.SLO_US_MAX):
        raise JobError(
            f"job {job_id}: {c.ENV_SLO_US}={text[: c.GIVEN_MAX]} is out of range; allowed is {c.SLO_US_MIN} to "
            f"{c.SLO_US_MAX}. Example: --gres=vgpu:mem=8G,cores=50,slo=10ms"
        )
    return int(text)


def _count(job_id: int, slices: int) -> int:
    if not 1 <= slices <= c.SLICES_MAX:
        raise JobError(
            f"job {job_id} has {slices} vgpu on this node; allowed is 1 to {c.SLICES_MAX}. Use more nodes (-N) or "
            f"larger slices. Example: {c.REQUEST_EXAMPLE}",
        )
    return slices


def _of_each(job_id: int, name: str, value: int, slices: int, most: int) -> int:
    """Returns what each slice has of the job's units, which are the sum of all."""
    if value % slices:
        raise JobError(
            f"job {job_id}: {name}={value} cannot be divided equally among {slices} slices. Ask for the same of each: "
            f"--gres=vgpu:{slices}:mem=8G,cores=50",
        )
    if not 1 <= value // slices <= most:
        of_all = "" if slices == 1 else f" for {slices} slices"
        raise JobError(
            f"job {job_id}: {name}={value}{of_all} is out of range; allowed is {slices} to {most * slices}. "
            f"Example: {c.REQUEST_EXAMPLE}",
        )
    return value // slices


def _gpu_index(listed: str, job_id: int, slices: int) -> int:
    """Returns Slurm's index of the GPU of a single slice, from SLURM_JOB_GPUS; of several slices that of the last."""
    if not listed:
        raise NodeError(
            f"job {job_id} has a vgpu but no GPU (SLURM_JOB_GPUS is not set): gres.conf needs gpu and shard lines with "
            "File=. Write it with hami-hpc render",
        )
    indices = listed.split(",")
    if not all(index.isascii() and index.isdigit() for index in indices):
        raise NodeError(f"job {job_id}: SLURM_JOB_GPUS is '{listed[: c.GIVEN_MAX]}', not a list of device indices")
    if len(indices) > slices:
        raise JobError(
            f"job {job_id} has {slices} vgpu on {len(indices)} GPU(s) of this node; a slice is on one GPU. "
            f"Use more nodes (-N) or a larger slice. Example: {c.REQUEST_EXAMPLE}",
        )
    return int(indices[-1])


def policy_of_job(job_id: int, service_class: str, own_policy: str, allowed: Sequence[str], constraints: str) -> str:
    """Returns the policy that the job's features name, else its class's own.

    `constraints` are the job's features as in its credential: job_submit adds one for policy=. Users can write features
    too, so the class, which they cannot choose, decides here again. Raises JobError for a policy not `allowed` by it.
    """
    words = "".join(ch if ch.isalnum() or ch in "_-" else " " for ch in constraints).split()
    wanted = [policy for policy in c.POLICIES if c.FEATURE_POLICY.format(policy=policy) in words]
    for policy in wanted:
        if policy not in allowed:
            raise JobError(
                f"job {job_id}: policy={policy} is not allowed in class {service_class}, whose policies are: "
                f"{', '.join(allowed)}. The site's settings changed since it was submitted, or its --constraint names "
                "the policy. Submit it again without"
            )
    return wanted[0] if wanted else own_policy


def make_grant(
    units: JobUnits,
    gpu: Gpu,
    policy: str,
    mode: str,
    created_unix_ns: int,
    *,
    latency: bool = False,
    floor: int = 0,
    priority: int = 0,
    slice_us: int = 0,
    slice_index: int = 0,
    in_step: int = 0,
    max_processes: int = 0,
) -> Grant:
    """Returns the grant of `units` on `gpu`. What follows the time, `floor` in percent, is of the job's class, but
    `slice_index`, which of the job's slices it is, and `in_step`, of core/in_step.py.

    Raises JobError for an slo in a class that is not latency-critical.
    """
    if units.slo_us and not latency:
        raise JobError(
            f"job {units.job_id}: slo= needs a latency-critical class, and class {units.service_class} is none. The "
            "site's settings changed since it was submitted. Submit it again without, or in another class"
        )
    return Grant(
        job_id=units.job_id,
        uid=units.uid,
        gpu_uuid=gpu.uuid,
        gpu_minor=gpu.minor,
        gpu_total_mib=gpu.total_mib,
        model=gpu.model,
        mem_mib=units.mem_mib,
        cores_percent=units.cores_percent,
        service_class=units.service_class,
        policy=policy,
        mode=mode,
        created_unix_ns=created_unix_ns,
        latency=int(latency),
        floor_percent=floor if latency else 0,
        class_priority=priority,
        slice_us=slice_us,
        slo_us=units.slo_us,
        slice_index=slice_index,
        slice_count=units.slice_count,
        in_step=in_step,
        max_processes=max_processes,
    )


def check_fits(grant: Grant, live: Iterable[Grant], memory_scaling: float) -> None:
    """Raises NodeError when `grant` is larger than a slice of its GPU can be, or when it and the live grants of the GPU
    together exceed what the GPU has for all slices: with the code E_HELD where it would fit without them."""
    others = [other for other in live if other.gpu_uuid == grant.gpu_uuid and other.job_id != grant.job_id]
    most_mib = largest_mib(grant.gpu_total_mib, memory_scaling)
    capacity_mib = sold_mib(grant.gpu_total_mib, memory_scaling)
    granted_mib = sum(other.mem_mib for other in others)
    if grant.mem_mib <= min(most_mib, capacity_mib - granted_mib):
        return
    if grant.mem_mib > most_mib:
        for_one = " for one slice" if is_oversold(memory_scaling) else ""
        raise NodeError(
            f"job {grant.job_id} was given {grant.mem_mib} MiB of GPU {grant.gpu_minor} ({grant.gpu_uuid}), which has "
            f"{most_mib} MiB{for_one}. total_mib of {grant.model} in hami-hpc.toml is too large for this node: "
            "compare with hami-hpc inventory",
        )
    holders = ", ".join(f"job {other.job_id}: {other.mem_mib} MiB" for other in others[:8])
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""
    raise NodeError(
        f"job {grant.job_id} needs {grant.mem_mib} MiB of GPU {grant.gpu_minor} ({grant.gpu_uuid}), but "
        f"{granted_mib} of {capacity_mib} MiB are held ({holders}{more}). "
        "If those jobs have ended, run: hami-hpc reconcile",
        "E_HELD",
    )
