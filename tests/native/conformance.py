# SPDX-License-Identifier: Apache-2.0
"""Runs conformance programs under a limit, on the simulated driver or, with HAMI_TEST_GPU=1, on the machine's GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE, empty_usage_head, pack_limits

ROOT = Path(__file__).resolve().parents[2]
# Another build of the C parts, with a sanitizer: build/native-address-undefined or build/native-thread.
BUILD = Path(os.environ.get("HAMI_TEST_BUILD") or ROOT / "build" / "native")
PROGRAMS = BUILD / "conformance"
INTERPOSER = BUILD / "libhami-hpc.so"
REAL_GPU = os.environ.get("HAMI_TEST_GPU") == "1"
MIB = 1 << 20
NO_LIMIT = (1 << 64) - 1
JOB = 4711
SANITIZERS = {"native-address-undefined": "libasan.so", "native-thread": "libtsan.so"}


@cache
def sanitizer() -> list[str]:
    """The sanitizer's own library, which must be loaded before everything else; none in the plain build."""
    if BUILD.name not in SANITIZERS:
        return []
    command = ["gcc", f"-print-file-name={SANITIZERS[BUILD.name]}"]
    return [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()]


# Leaks are not looked for: what the interposer maps and learns stays until the process ends, on purpose. Nor are
# threads that nobody joined: Python 3.13 joins none of its own.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=99:die_after_fork=0:atexit_sleep_ms=0:report_thread_leaks=0",
}


def put(record: bytes, values: Mapping[str, int | str]) -> bytes:
    """`record` (a limits record) with some of its fields replaced."""
    out = bytearray(record)
    for name, value in values.items():
        offset, size, _kind = c.LIMITS_FIELDS[name]
        raw = value.encode().ljust(size, b"\0") if isinstance(value, str) else value.to_bytes(size, "little")
        assert len(raw) == size
        out[offset : offset + size] = raw
    return bytes(out)


@dataclass(frozen=True)
class Slice:
    """A job's run directory with one step, and the environment that SPANK would give that step's tasks."""

    directory: Path
    machine: Path | None
    gpu_uuid: str
    limit_mib: int
    step_id: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> Path:
        return self.directory / c.FILE_STEP_LIMITS.format(step_id=self.step_id)

    def usage(self) -> dict[str, int]:
        """The numbers in the head of the job's usage file."""
        data = (self.directory / c.FILE_USAGE).read_bytes()
        return {k: int.from_bytes(data[o : o + n], "little") for k, (o, n, _kind) in c.USAGE_FIELDS.items()}

    def environment(self, *, preload: bool = True) -> dict[str, str]:
        out = {k: v for k, v in os.environ.items() if not k.startswith(("HAMI_", "LD_PRELOAD"))}
        if self.machine:
            out["LD_LIBRARY_PATH"] = str(BUILD / "sim")
            out["HAMI_SIM"] = str(self.machine)
        libraries = sanitizer() + ([str(INTERPOSER)] if preload else [])
        if self.machine:
            libraries.append(str(BUILD / "sim/libhami-sim-kernel.so"))  # behind the interposer, as the real one is
        if libraries:
            out["LD_PRELOAD"] = " ".join(libraries)
        if preload:
            out[c.ENV_LIMITS] = str(self.limits)
        out["LIMIT_MIB"] = str(self.limit_mib)
        return out | (SANITIZER_OPTIONS if sanitizer() else {}) | self.extra

    def run(self, *command: str, preload: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`command` (a conformance program's name, or a path) under this slice."""
        program, *arguments = command
        path = program if "/" in program else str(PROGRAMS / program)
        return subprocess.run(
            [path, *arguments],
            env=self.environment(preload=preload),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def make_slice(
    directory: Path,
    machine: Path | None,
    gpu_uuid: str,
    *,
    job_mib: int,
    step_mib: int | None = None,
    step_id: int = 0,
    cores_percent: int = 100,
    step_cores_percent: int | None = None,
    policy: str = "cap",
    service_class: str = "std",
    gpu_total_mib: int = 143155,
    uid: int | None = None,
    mode: str = "share",
    fields: Mapping[str, int | str] | None = None,
    step_fields: Mapping[str, int | str] | None = None,
) -> Slice:
    """Writes what prolog and SPANK write; an existing job directory only gets the step's record.

    `fields` are more of what both records have, `step_fields` of the step's alone, by name (contract.toml,
    [layout.limits]).
    """
    directory = directory / str(JOB)
    directory.mkdir(parents=True, exist_ok=True)
    grant = Grant(
        job_id=JOB,
        uid=os.getuid() if uid is None else uid,
        gpu_uuid=gpu_uuid,
        gpu_minor=0,
        gpu_total_mib=gpu_total_mib,
        model="h200",
        mem_mib=job_mib,
        cores_percent=cores_percent,
        service_class=service_class,
        policy=policy,
        mode=mode,
        created_unix_ns=1,
    )
    record = put(pack_limits(grant), fields or {})
    made = Slice(directory, machine, gpu_uuid, min(job_mib, step_mib or job_mib), step_id)
    if not (directory / c.FILE_USAGE).exists():
        (directory / c.FILE_JOB_LIMITS).write_bytes(record)
        (directory / c.FILE_USAGE).parent.mkdir(exist_ok=True)
        with (directory / c.FILE_USAGE).open("wb") as usage:
            usage.write(empty_usage_head())
            usage.truncate(USAGE_FILE_SIZE)
    # A step that has all of its job says no limit with mode=share: slurm-plugins/spank/decide.c, step_limits().
    of_job = (NO_LIMIT, 100) if mode == "share" else (job_mib * MIB, cores_percent)
    step = {"step_id": step_id, "mem_limit_bytes": of_job[0] if step_mib is None else step_mib * MIB}
    step["cores_percent"] = step_cores_percent or of_job[1]
    made.limits.write_bytes(put(record, {**step, **(step_fields or {})}))
    for path in (directory / c.FILE_JOB_LIMITS, made.limits):
        path.chmod(0o644)
    return made


def compiled(source: str, to: Path, *options: str) -> Path:
    """`source` (C) as a shared object."""
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-x", "c", "-", "-o", str(to)]
    subprocess.run([*command, *options], input=source, text=True, check=True)
    return to
