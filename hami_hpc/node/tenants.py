# SPDX-License-Identifier: Apache-2.0
"""Tenants that measure a GPU: hami-hpc-measure under the interposer, with records as a job's steps have them.

Root writes the records into <run_dir>/baseline/, where no prolog, epilog or agent looks: no grant, no ledger row, no
mount. Whoever calls this holds the lock of `measuring`, so what is there was left by a process that was killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import INT64_MAX
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Device
from hami_hpc.core.records import USAGE_FILE_SIZE, empty_usage_head, pack_limits, parse_usage
from hami_hpc.core.turns import make_turns
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, locks

FOLDER, LOCK = "baseline", "baseline.lock"
FIRST_JOB_ID = 1
LOOPS = 62_500  # of a kernel: 1 ms at 2 GHz
LOOK_S = 0.1  # between two looks whether somebody else uses the GPU
KILL_S = 2.0
NS = 1_000_000_000
# Variables that would make another program, or another GPU, of the measurement.
DROPPED = ("CUDA_", "HAMI_HPC_", "NVIDIA_", "LD_PRELOAD")


class MeasureError(NodeError):
    """The GPU, the driver or the program that measures did not do what it should."""


@contextmanager
def measuring(run_dir: str) -> Iterator[str]:
    """Yields the folder for records, empty, with the lock held that only one measurement of the node has.

    Raises locks.HeldError when another one runs, NodeError when the folder cannot be made.
    """
    folder = f"{run_dir}/{FOLDER}"
    try:
        lock = locks.acquire(f"{run_dir}/{LOCK}", exclusive=True, timeout_s=0)
    except OSError as error:
        raise NodeError(f"{run_dir}/{LOCK} cannot be made ({error.strerror}); see df and ls -ld there") from error
    try:
        _remove(folder)
        os.mkdir(folder, 0o755)
        os.chmod(folder, 0o755)
        yield folder
    except OSError as error:
        raise NodeError(f"{error.filename or folder}: {error.strerror}; see df and ls -ld there") from error
    finally:
        _remove(folder)
        os.close(lock)


def _remove(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def make_slices(folder: str, device: Device, caps: Sequence[int]) -> list[str]:
    """Writes the records of tenants with policy cap beside one another, as prolog and SPANK would.

    Returns the paths of their limits records, for HAMI_HPC_LIMITS.
    """
    grants = [
        Grant(
            job_id=FIRST_JOB_ID + number,
            uid=os.geteuid(),
            gpu_uuid=device.uuid,
            gpu_minor=device.minor,
            gpu_total_mib=device.total_mib,
            model="",
            mem_mib=device.total_mib // len(caps),
            cores_percent=cores,
            service_class=c.CLASS_DEFAULT,
            policy="cap",
            mode="share",
            created_unix_ns=time.time_ns(),
        )
        for number, cores in enumerate(caps)
    ]
    turns = make_turns(grants)
    return [_write_slice(folder, grant, turns[grant.job_id]._asdict()) for grant in grants]


def _write_slice(folder: str, grant: Grant, turn: Mapping[str, int]) -> str:
    directory = f"{folder}/{device_folder(grant.gpu_uuid)}/{grant.job_id}"
    _remove(directory)
    for path in (os.path.dirname(directory), directory, os.path.dirname(f"{directory}/{c.FILE_USAGE}")):
        with contextlib.suppress(FileExistsError):  # makedirs would make all but the last as open as the umask lets it
            os.mkdir(path, 0o755)
    step = f"{directory}/{c.FILE_STEP_LIMITS.format(step_id=0)}"
    record = pack_limits(grant)
    contents = {
        f"{directory}/{c.FILE_JOB_LIMITS}": _with(record, turn),
        step: _with(record, {"step_id": 0}),
        f"{directory}/{c.FILE_USAGE}": empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"),
    }
    for path, content in contents.items():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(fd, "wb") as file:
            file.write(content)
    return step


def was_limited(limits: str) -> bool:
    """Returns whether the interposer counted memory of the tenant that had these records."""
    data = job_dirs.read_bounded(f"{os.path.dirname(limits)}/{c.FILE_USAGE}", USAGE_FILE_SIZE, os.geteuid())
    return data is not None and parse_usage(data, INT64_MAX, 0).peak_bytes > 0


def device_folder(uuid: str) -> str:
    """Returns the name of a GPU's folder; UUIDs are the driver's and have no slash."""
    return uuid.replace("/", "_")


def _with(record: bytes, values: Mapping[str, int]) -> bytes:
    changed = bytearray(record)
    for name, value in values.items():
        offset, width, _kind = c.LIMITS_FIELDS[name]
        changed[offset : offset + width] = value.to_bytes(width, "little")
    return bytes(changed)


def tenant_environment(environment: Mapping[str, str], interposer: str, uuid: str, limits: str) -> dict[str, str]:
    """Returns the environment of one tenant: the caller's, one GPU, and the interposer before what was preloaded."""
    kept = {name: value for name, value in environment.items() if not name.startswith(DROPPED)}
    preload = " ".join([interposer, *environment.get("LD_PRELOAD", "").replace(":", " ").split()])
    # Nothing is written to root's home: the kernel takes milliseconds to compile.
    return kept | {
        "LD_PRELOAD": preload,
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_CACHE_DISABLE": "1",
        c.ENV_LIMITS: limits,
    }


class Tenants:
    """Processes that measure together. Use it as a context manager: at its end none of them runs any more."""

    def __init__(self, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
        self.processes = [
            subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for command, environment in zip(commands, environments, strict=True)
        ]
        self._text = [b"" for _ in self.processes]

    def __enter__(self) -> Tenants:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the driver: nothing more can be done
                process.wait(KILL_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(process.pid for process in self.processes)

    def go(self, start_ns: int, length_ns: int) -> None:
        """Lets all of them work; their kernels count from start_ns (CLOCK_MONOTONIC) on."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, and wait_for() says so
                process.stdin.write(f"go {start_ns} {length_ns}\n".encode())
                process.stdin.flush()

    def wait_for(self, word: str, deadline: float, look: Callable[[frozenset[int]], None]) -> list[dict[str, int]]:
        """Waits until each has printed a line that begins with `word`. Returns each one's numbers by name.

        Calls `look` with the processes' ids in between, which may raise. Raises MeasureError at `deadline`
        (time.monotonic()), and when a process ends before.
        """
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(self.processes):
                assert process.stdout is not None
                if not self._has(number, word):
                    selector.register(process.stdout, selectors.EVENT_READ, number)
            while selector.get_map():
                look(self.pids)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise MeasureError("the program that measures did not answer in time: see dmesg (Xid)")
                for key, _events in selector.select(min(left, LOOK_S)):
                    data = os.read(key.fd, 4096)
                    self._text[key.data] += data
                    if not data:
                        raise MeasureError(self._why_ended(key.data))
                    if self._has(key.data, word):
                        selector.unregister(key.fileobj)
        return [self._numbers(text) for text in self._text]

    def _has(self, number: int, word: str) -> bool:
        lines = self._text[number].decode(errors="replace").splitlines(keepends=True)
        return any(line.split()[:1] == [word] and line.endswith("\n") for line in lines)

    def _why_ended(self, number: int) -> str:
        process = self.processes[number]
        assert process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        os.set_blocking(process.stderr.fileno(), False)
        said = (process.stderr.read(4096) or b"").decode(errors="replace").strip().replace("\n", "; ")
        return f"the program that measures ended with status {process.poll()}: {said or 'it said nothing'}"

    @staticmethod
    def _numbers(text: bytes) -> dict[str, int]:
        words = [line.split() for line in text.decode(errors="replace").splitlines()]
        return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}
