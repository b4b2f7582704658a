# SPDX-License-Identifier: Apache-2.0
"""The turn of an MPS server beside a latency-critical job: its clients pause their channels outside of it, and resume
those of one that does not, as a client that is paused stops all of them on a GPU (docs/adr/113).

The simulated resource manager has a group of its own for each client: here only its own pause stops a client.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from test_compute import machine, measured

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="tests/gpu/mps_beside.py is for a real GPU")
WORKS = str(BUILD / "compute/allocates_and_works")
RM = BUILD / "rm"
Machine = tuple[Path, str]
ENTRY = struct.Struct("<IIqIIII32I")  # struct hami_client of native/interposer/region/clients.h
ENTRIES = 64
HALF = {"latency_others": 1, "turn_begin_permille": 0, "turn_length_permille": 500}
RESUMED = re.compile(r"resumed channels of another client of the MPS server, which is late \((-?\d+)\)")


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """The file of a server's clients, as the prolog makes it."""
    path = tmp_path / "pipe" / c.FILE_MPS_CLIENTS
    path.parent.mkdir()
    path.touch(0o600)
    return path


@pytest.fixture
def job(tmp_path: Path, machine: Machine, clients: Path) -> Slice:
    return client_of(tmp_path / "job", machine, clients, HALF)


def client_of(folder: Path, machine: Machine, clients: Path, fields: dict[str, int]) -> Slice:
    made = make_slice(folder, *machine, job_mib=4096, cores_percent=20, policy="none", mode="mps", fields=fields)
    made.extra.update({"CUDA_MPS_PIPE_DIRECTORY": str(clients.parent), c.ENV_LOG: "2"})
    return made


class Client:
    """A program, or one that works for so many milliseconds, and what it has written so far."""

    def __init__(self, job: Slice, *command: object) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in (command if len(command) > 1 else (WORKS, *command))],
            env=job.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines.extend(self.process.stderr)

    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < end, self.text()
            time.sleep(0.002)

    def end(self) -> str:
        assert self.process.wait(timeout=60) == 0, self.text()
        self._reader.join(10)
        return self.text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)


@pytest.fixture
def started() -> Iterator[list[Client]]:
    """Clients that are to be killed in the end."""
    all_of_them: list[Client] = []
    yield all_of_them
    for one in all_of_them:
        one.kill()


def disabled_channels(simulated: Path) -> dict[int, int]:
    """Of each process. Raises TimeoutExpired where a process is stopped within a call of the simulated kernel's driver,
    with its lock; a real process never is."""
    out = subprocess.run(
        [str(BUILD / "sim/sim-state"), str(simulated)], check=True, capture_output=True, text=True, timeout=5
    )
    return {one["pid"]: one["disabled_channels"] for one in json.loads(out.stdout)["gpus"][0]["processes"]}


def stopped_while_paused(job: Slice, simulated: Path, started: list[Client]) -> Client:
    """Starts a client, and stops it so that its channels stay paused until somebody else resumes them."""
    client = Client(job, 60_000)
    started.append(client)
    for _ in range(50):
        client.wait_for("paused")
        end = time.monotonic() + 1
        while not disabled_channels(simulated).get(client.process.pid) and time.monotonic() < end:
            time.sleep(0.001)
        client.process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            if disabled_channels(simulated).get(client.process.pid):
                return client
        client.process.send_signal(signal.SIGCONT)
    raise AssertionError("it was never stopped while it was paused")


def test_a_client_keeps_to_its_servers_turn(job: Slice, started: list[Client]) -> None:
    started.append(Client(job, 600))
    text = started[0].end()
    assert len(re.findall(r"^hami_hpc: paused", text, re.MULTILINE)) >= 5, text
    assert "timeslices of 10 us" in text
    assert not RESUMED.search(text)


@pytest.mark.parametrize("fields", [{}, {"turn_length_permille": 500}, {"latency_others": 1}])
def test_without_somebody_latency_critical_or_anybody_else_it_is_not_paused(
    fields: dict[str, int], tmp_path: Path, machine: Machine, clients: Path, started: list[Client]
) -> None:
    started.append(Client(client_of(tmp_path / "job", machine, clients, fields), 300))
    assert "paused" not in started[0].end()


def test_the_service_class_of_a_client_changes_no_turn(
    tmp_path: Path, machine: Machine, clients: Path, started: list[Client]
) -> None:
    """A user with a latency-critical QoS would have the GPU alone by mode=mps."""
    started.append(Client(client_of(tmp_path / "job", machine, clients, HALF | {"latency": 1}), 400))
    assert "paused" in started[0].end()


def test_others_resume_a_client_that_was_stopped_while_paused(
    job: Slice, machine: Machine, started: list[Client]
) -> None:
    stopped = stopped_while_paused(job, machine[0], started)
    time.sleep(0.3)
    assert disabled_channels(machine[0])[stopped.process.pid], "nobody else is there"
    other = Client(job, 800)
    started.append(other)
    other.wait_for("resumed channels of another client")
    assert not disabled_channels(machine[0])[stopped.process.pid]
    resumed = RESUMED.findall(other.end())
    assert set(resumed) == {"0"}
    assert len(resumed) <= 3, "it says no more until when it is paused: it is resumed twice a second at most"
    already = stopped.text().count("paused")
    stopped.process.send_signal(signal.SIGCONT)
    end = time.monotonic() + 10
    while stopped.text().count("paused") == already and time.monotonic() < end:
        time.sleep(0.01)
    assert stopped.text().count("paused") > already, "it keeps to its turn again"


def test_the_time_of_a_client_is_its_servers_while_it_has_work(
    tmp_path: Path, machine: Machine, clients: Path, started: list[Client]
) -> None:
    """The driver's records know the server's group by any one of its clients. Here each is known by its own number: so
    those that tell one another count both, and those that cannot count their own."""

    def used(kind: str) -> int:
        jobs = [client_of(tmp_path / f"{kind}{len(started)}" / str(i), machine, clients, {}) for i in range(2)]
        now = [Client(job, BUILD / "compute/spin_for", 1500, 10000) for job in jobs]
        started.extend(now)
        for one in now:
            one.end()
        return min(job.usage()["time_used"] for job in jobs)

    def gain() -> float:
        clients.touch()
        told = used("told")
        clients.unlink()
        return told / used("untold")

    assert measured(gain, lambda value: value > 1.4) > 1.4


def test_a_client_that_was_killed_while_paused_leaves_nothing_to_resume(
    job: Slice, machine: Machine, started: list[Client]
) -> None:
    stopped_while_paused(job, machine[0], started).kill()
    started.append(Client(job, 400))
    assert not RESUMED.search(started[1].end())


def entry(
    paused_until: int, *channels: tuple[int, int], version: int = 1, count: int | None = None, timeslice_us: int = 0
) -> bytes:
    handles = [handle for pair in channels for handle in pair][:32]
    handles += [0] * (32 - len(handles))
    many = len(channels) if count is None else count
    return ENTRY.pack(version, 7, paused_until, timeslice_us, many, 0, 0, *handles)


FORGED = {
    "nonsense": os.urandom(ENTRIES * ENTRY.size),
    "ones": b"\xff" * ENTRIES * ENTRY.size,
    "handles of nobody": entry(1, (0xC1D00001, 0x5C000001)) * ENTRIES,
    "too many": entry(1, version=1, count=2**32 - 1) * ENTRIES,
    "longest ago": entry(-(2**63), (1, 1)) * ENTRIES,
    "in all time to come": entry(2**63 - 1, (1, 1)) * ENTRIES,
    "of another version": entry(1, (1, 1), version=2) * ENTRIES,
    "half an entry": entry(1, (1, 1))[:80],
    "much too long": b"\x01\0\0\0" * (1 << 18),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_whatever_is_written_into_the_file_a_client_goes_on(
    content: bytes, job: Slice, clients: Path, started: list[Client]
) -> None:
    """Its writer holds the lock of each entry but one, so that all of them count."""
    with clients.open("r+b") as file:
        held = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, ENTRY.size, (ENTRIES - 1) * ENTRY.size, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, held)
        started.append(Client(job, 400))
        while started[0].process.poll() is None:
            file.seek(0)
            file.write(content)
            file.flush()
            time.sleep(0.003)
            file.truncate(0)
    assert "paused" in started[0].end()


@pytest.mark.parametrize(
    ("others_us", "us"), [(0, 9000), (9, 9000), (10, 10), (700, 700), (20_000, 9000), (2**32 - 1, 9000)]
)
def test_the_servers_timeslice_is_the_shortest_that_a_client_wants(
    others_us: int, us: int, tmp_path: Path, machine: Machine, clients: Path, started: list[Client]
) -> None:
    """Else a client that comes, and has not seen yet how little others have to do, would undo what another found."""
    job = client_of(tmp_path / "job", machine, clients, {"server_cores": 20, "others_least_cores": 20})
    with clients.open("r+b") as file:
        file.seek((ENTRIES - 1) * ENTRY.size)
        file.write(entry(0, timeslice_us=others_us))
        file.flush()
        held = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, (ENTRIES - 1) * ENTRY.size, ENTRY.size, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, held)
        started.append(Client(job, 400))
        assert started[0].process.wait(timeout=60) == 0
        own = ENTRY.unpack(clients.read_bytes()[: ENTRY.size])
    last = re.findall(r"timeslices of (\d+) us", started[0].end())[-1]
    assert int(last) == us
    assert own[3] == 9000, "what it wants itself"


def test_a_client_without_an_entry_is_not_paused(job: Slice, clients: Path, started: list[Client]) -> None:
    """Nobody could resume it."""
    with clients.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1 << 30, 0))
        started.append(Client(job, 400))
        text = started[0].end()
    assert "paused" not in text
    assert "no entry among the clients of the MPS server" in text


@pytest.mark.parametrize("what", ["missing", "a folder", "a link"])
def test_a_client_without_the_file_is_not_paused(what: str, job: Slice, clients: Path, started: list[Client]) -> None:
    """As beside a daemon that an older version started."""
    clients.unlink()
    if what == "a folder":
        clients.mkdir()
    elif what == "a link":
        clients.symlink_to(clients.parent / "elsewhere")
        (clients.parent / "elsewhere").touch()
    started.append(Client(job, 300))
    assert "paused" not in started[0].end()


def test_a_client_that_cannot_write_the_file_goes_on_and_is_not_paused(job: Slice) -> None:
    """As where others of the user have filled its file system, or where the program may write no files."""
    result = job.run("/bin/sh", "-c", f"ulimit -f 0; exec {WORKS} 300")
    assert result.returncode == 0, result.stderr
    assert "timeslices of 10 us" in result.stderr
    assert "paused" not in result.stderr


def test_a_client_with_more_channels_than_an_entry_has_is_not_paused(job: Slice) -> None:
    """Nobody could resume them all."""
    job.extra["HAMI_SIM_FAULTS"] = "nvmlInit_v2=9"
    for groups, is_paused in ((8, True), (17, False)):
        result = job.run(str(RM / "a_client_of_mps_has_a_turn"), str(groups), str(int(is_paused)))
        assert result.returncode == 0, result.stderr


def test_an_entry_is_kept_whatever_descriptors_the_program_closes(job: Slice, clients: Path) -> None:
    job.extra["HAMI_SIM_FAULTS"] = "nvmlInit_v2=9"
    result = job.run(str(RM / "a_client_of_mps_has_a_turn"), "1", "1", str(clients))
    assert result.returncode == 0, result.stderr
